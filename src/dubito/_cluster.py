"""The way to a Ray cluster (extra `ray`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["AUTO", "connected", "share_of"]

AUTO = "auto"
PASSED_ON = ("DUBITO_DATA", "DUBITO_KERNELS", "OMP_NUM_THREADS", "PYTHONPATH")


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to the cluster at an address; "auto" is the one here, else a new one here."""
    ray = _imported()
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    started = not ray.is_initialized()
    if started:
        _connect(ray, address, {"log_to_driver": False, "runtime_env": {"env_vars": env}})
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()


def share_of(ray: Any, gpus: float | None) -> float:
    """How much of a GPU a task takes: by default a whole one where the cluster has any."""
    return (1.0 if ray.cluster_resources().get("GPU") else 0.0) if gpus is None else gpus


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ValueError("a cluster needs Ray: pip install 'dubito[ray]'") from error
    return ray


def _connect(ray: Any, address: str, options: dict[str, Any]) -> None:
    try:
        ray.init(address=address, **options)
    except ConnectionError:
        if address != AUTO:
            raise
        ray.init(**options)
