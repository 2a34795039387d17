"""Damage, and how much of it: DUBITO_FUZZ=500 tries that many cases of each kind, new ones."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FUZZ = settings(
    max_examples=int(os.environ.get("DUBITO_FUZZ", "60")),
    derandomize="DUBITO_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def damaged(content: bytes, data: st.DataObject) -> bytes:
    """Some bytes changed, or the end cut off, or other bytes altogether."""
    kind = data.draw(st.sampled_from(["changed", "cut", "other"]))
    if kind == "other":
        return data.draw(st.binary(max_size=200))
    if kind == "cut":
        return content[: data.draw(st.integers(0, len(content) - 1))]
    held = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        held[data.draw(st.integers(0, len(held) - 1))] = data.draw(st.integers(0, 255))
    return bytes(held)
