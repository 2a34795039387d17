"""The files in deploy/: nginx in front of real instances, and the manifests."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.serve import nginx
from dubito.model import Model
from tests.serve.conftest import ROOT
from tools import attack

DEPLOY = ROOT / "deploy"
needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
BODY = {"inputs": [[[[7] * 8] * 8]]}


@needs_nginx
def test_nginx_loses_nothing_while_an_instance_stops(
    image_model: Model, tmp_path: Path, process: Callable[..., Any]
) -> None:
    folder = image_model.save(tmp_path / "model")
    (_, first), (second, port) = process(folder), process(folder)
    statuses: list[int] = []
    stopped = threading.Event()

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stopped.is_set():
                statuses.append(client.post("/v1/predict", json=BODY).status_code)
            statuses.append(client.post("/v1/predict", json=BODY).status_code)

    with nginx(tmp_path, first, port, limits=True) as proxy:
        arguments = (f"http://127.0.0.1:{proxy}",)
        threads = [threading.Thread(target=ask, args=arguments) for _ in range(8)]
        for thread in threads:
            thread.start()
        second.send_signal(signal.SIGTERM)
        second.wait(60)
        stopped.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}


@needs_nginx
def test_nginx_limits(image_model: Model, tmp_path: Path, process: Callable[..., Any]) -> None:
    _, port = process(image_model.save(tmp_path / "model"))
    with nginx(tmp_path, port, port, limits=True) as proxy:
        url = f"http://127.0.0.1:{proxy}"
        large = httpx.post(f"{url}/v1/predict", content=b" " * (9 << 20), timeout=60)
        assert large.status_code == 413
        assert httpx.get(url, headers={"a": "x" * 40_000}).status_code == 400
        assert httpx.get(f"{url}/metrics").status_code == 404
        assert httpx.get(url).status_code == 200


@pytest.mark.attack
@needs_nginx
def test_attacks(image_model: Model, tmp_path: Path, process: Callable[..., Any]) -> None:
    """A polite client at another address gets its answers; memory stays bounded."""
    running, port = process(image_model.save(tmp_path / "model"))
    with nginx(tmp_path, port, port, limits=True) as proxy:
        asyncio.run(attack.recovery(proxy))
        before = attack.resident(running.pid)
        for name in attack.ATTACKS:
            found = asyncio.run(attack.measure(name, proxy, [running.pid], 0.5))
            assert (name, found.failures) == (name, 0)
            assert found.latencies
            assert found.peak - before < 400


@needs_nginx
def test_nginx_configuration_is_valid() -> None:
    checked = subprocess.run(
        ["nginx", "-t", "-c", str(DEPLOY / "nginx.conf"), "-e", "stderr"], capture_output=True
    )
    assert checked.returncode == 0, checked.stderr


def manifest() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def test_kubernetes_schema() -> None:
    schema = pytest.importorskip("kubernetes_validate")
    for one in manifest():
        schema.validate(one, schema.latest_version(), strict=True)


def test_kubernetes_objects_belong_together() -> None:
    objects = {one["kind"]: one for one in manifest()}
    deployment, service = objects["Deployment"]["spec"], objects["Service"]["spec"]
    pod = deployment["template"]
    labels = pod["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == service["selector"] == labels
    (container,) = pod["spec"]["containers"]
    assert [port["name"] for port in container["ports"]] == [service["ports"][0]["targetPort"]]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "dubito"
    (path,) = objects["Ingress"]["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["name"] == objects["Service"]["metadata"]["name"]


def test_ray_serve(array_model: Model, tmp_path: Path) -> None:
    pytest.importorskip("ray.serve", reason="ray[serve] is not installed")
    import ray
    from ray import serve

    from deploy.ray_serve import Deployment

    folder = array_model.save(tmp_path / "model")
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)
    try:
        serve.run(Deployment.bind(str(folder), {"engine": "torch"}))
        body = {"inputs": [[1, 2, 3, 4]]}
        found = httpx.post("http://127.0.0.1:8000/v1/predict", json=body, timeout=60)
        assert found.status_code == 200
        assert len(found.json()["predictions"]) == 1
        assert httpx.post("http://127.0.0.1:8000/v1/predict", json={}).status_code == 422
    finally:
        serve.shutdown()
        ray.shutdown()
