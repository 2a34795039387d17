"""The files in deploy/: nginx in front of real instances, and the manifests."""

import asyncio
import re
import select
import shutil
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from benchmarks.serve import nginx
from dubito.errors import DubitoError
from dubito.model import Model
from tests.serve.conftest import ROOT, wait_until
from tools import attack

DEPLOY = ROOT / "deploy"
needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
BODY = {"inputs": [[[[7] * 8] * 8]]}
#: as in nginx.conf
LIMIT_PER_ADDRESS, LIMIT_IN_TOTAL = 64, 256


@needs_nginx
def test_nginx_loses_nothing_while_an_instance_stops(image_model, tmp_path, process):
    folder = image_model.save(tmp_path / "model")
    (_, first), (second, port) = process(folder), process(folder)
    statuses: list[int] = []
    stopped = threading.Event()

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, timeout=600) as client:
            while not stopped.is_set():
                statuses.append(client.post("/v1/predict", json=BODY).status_code)
            statuses.append(client.post("/v1/predict", json=BODY).status_code)

    with nginx(tmp_path, first, port, limits=True) as proxy:
        arguments = (f"http://127.0.0.1:{proxy}",)
        threads = [threading.Thread(target=ask, args=arguments) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(statuses) > 8)
        second.send_signal(signal.SIGTERM)
        second.wait(600)
        stopped.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}


@needs_nginx
def test_nginx_limits(image_model, tmp_path, process):
    _, port = process(image_model.save(tmp_path / "model"))
    with (
        nginx(tmp_path, port, port, limits=True) as proxy,
        httpx.Client(base_url=f"http://127.0.0.1:{proxy}", timeout=600) as client,
    ):
        assert client.post("/v1/predict", content=b" " * (9 << 20)).status_code == 413
        assert client.get("/", headers={"a": "x" * 40_000}).status_code == 400
        assert client.get("/metrics").status_code == 404
        assert client.get("/").status_code == 200


@needs_nginx
def test_aborted_requests_count_until_they_are_answered(image_model, tmp_path, process):
    """An address that aborts its requests cannot fill the instances with them."""
    running, port = process(image_model.save(tmp_path / "model"))
    with nginx(tmp_path, port, port, limits=True) as proxy:
        running.send_signal(signal.SIGSTOP)  # as on a busy machine
        try:
            for _ in range(400):
                with socket.create_connection(("127.0.0.1", proxy)) as client:
                    client.sendall(attack.POLITE_REQUEST)
        finally:
            running.send_signal(signal.SIGCONT)
        outcome = asyncio.run(attack.ask_politely(proxy, requests=5))
    assert outcome.statuses == {200: 5}
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=600).text
    (received,) = re.findall(r"dubito_request_seconds_count (\d+)", metrics)
    assert int(received) <= LIMIT_PER_ADDRESS + 5


@needs_nginx
def test_nginx_limits_requests_of_all_addresses(image_model, tmp_path, process):
    running, port = process(image_model.save(tmp_path / "model"))
    with nginx(tmp_path, port, port, limits=True) as proxy, ExitStack() as stack:
        running.send_signal(signal.SIGSTOP)  # so that only nginx responds
        stack.callback(running.send_signal, signal.SIGCONT)
        clients = []
        for number in range(LIMIT_IN_TOTAL + 1):
            source = (f"127.0.1.{number // 50}", 0)
            client = socket.create_connection(("127.0.0.1", proxy), 600, source)
            stack.enter_context(client).sendall(attack.POLITE_REQUEST)
            clients.append(client)
        refused = select.select(clients, [], [], 600)[0]
        assert refused[0].recv(1000).startswith(b"HTTP/1.1 503 ")


@needs_nginx
def test_a_polite_client_is_answered_during_attacks(image_model, tmp_path, process):
    running, port = process(image_model.save(tmp_path / "model"))
    with nginx(tmp_path, port, port, limits=True) as proxy:
        before = attack.resident(running.pid)
        for name in attack.ATTACKS:
            outcome = asyncio.run(attack.measure(name, proxy, [running.pid], seconds=0.5))
            assert (name, set(outcome.statuses)) == (name, {200})
            assert outcome.peak - before < 400


def manifest() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def test_kubernetes_schema():
    schema = pytest.importorskip("kubernetes_validate")
    for item in manifest():
        schema.validate(item, schema.latest_version(), strict=True)


def test_kubernetes_objects_belong_together():
    objects = {item["kind"]: item for item in manifest()}
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


def test_ray_serve(array_model, tmp_path):
    pytest.importorskip("ray.serve", reason="ray[serve] is not installed")
    import ray
    from ray import serve

    from deploy.ray_serve import Deployment

    folder = array_model.save(tmp_path / "model")
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)
    try:
        serve.run(Deployment.bind(str(folder), {"engine": "torch"}))
        body = {"inputs": [[1, 2, 3, 4]]}
        with httpx.Client(base_url="http://127.0.0.1:8000", timeout=600) as client:
            response = client.post("/v1/predict", json=body)
            assert response.status_code == 200
            assert len(response.json()["predictions"]) == 1
            assert client.post("/v1/predict", json={}).status_code == 422
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_ray_predict_survives_the_loss_of_a_machine(
    image_model: Model, pixels: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.data", reason="ray[data] is not installed")
    import pandas as pd
    import pyarrow.parquet as pq
    import ray
    from ray.cluster_utils import Cluster

    from deploy import ray_predict

    photos, out, busy = tmp_path / "photos", tmp_path / "out", tmp_path / "busy"
    photos.mkdir()
    for row, image in enumerate(pixels):
        Image.fromarray(image).save(photos / f"{row:02}.png")
    (photos / "07.png").write_bytes(b"no image")
    paths = [str(path) for path in (image_model.save(tmp_path / "model"), photos, out)]

    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")  # the checkout need not be installed
    config = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
    cluster = Cluster(True, head_node_args={"num_cpus": 1, "_system_config": config})
    try:
        lost = cluster.add_node(num_cpus=1)
        node = lost.node_id

        class LostWorker(ray_predict.Worker):
            """Is killed in its first part on one machine; on the other one it waits for that."""

            def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
                if ray.get_runtime_context().get_node_id() == node:
                    busy.touch()
                    time.sleep(3600)
                while not busy.exists():
                    time.sleep(0.01)
                return super().__call__(batch)

        def kill() -> None:
            wait_until(busy.exists)
            cluster.remove_node(lost, allow_graceful=False)

        monkeypatch.setattr(ray_predict, "Worker", LostWorker)
        ray.init(cluster.address, configure_logging=False)
        threading.Thread(target=kill, daemon=True).start()
        assert ray_predict.predict(*paths, rows=3) == (60, 1)
        ray_predict.part_file(out, 4).unlink()
        assert ray_predict.predict(*paths, rows=3) == (3, 0)
        assert ray_predict.predict(*paths, rows=3) == (0, 0)
        with pytest.raises(DubitoError, match="name a new folder"):
            ray_predict.predict(*paths, rows=4)
    finally:
        ray.shutdown()
        cluster.shutdown()
    source = ray_predict.open_inputs(image_model, paths[1])
    expected = image_model.predict(source, on_error="report").to_pandas()
    found = pd.DataFrame(pq.read_table(out).to_pydict())
    pd.testing.assert_frame_equal(found, expected)
