"""Counters and histograms, in the text format of Prometheus.

Written here and not taken from a client library: these are three kinds of metric and sixty lines,
a batch is counted with a few vector operations, and the library's locks and labels, an object for
each observation, would cost more than the counting.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dubito.policy import REASONS
from dubito.serve._model import Answers, Served

__all__ = ["CONTENT_TYPE", "Histogram", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHARES = tuple(round(0.05 * step, 2) for step in range(1, 21))
MOST_LABELS = 100  # classes that are counted one by one
Labels = Mapping[str, str]


class Histogram:
    """Counts below bounds, and the sum.

    >>> seen = Histogram((1, 2))
    >>> seen.add([0.5, 1.0, 7.0])
    >>> print("".join(seen.lines("size", {})), end="")
    size_bucket{le="1"} 2
    size_bucket{le="2"} 2
    size_bucket{le="+Inf"} 3
    size_sum 8.5
    size_count 3
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = np.asarray(bounds, np.float64)
        self.counts = np.zeros(len(bounds) + 1, np.int64)
        self.total = 0.0

    def add(self, values: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """Count values."""
        found = np.asarray(values, np.float64)
        places = self.bounds.searchsorted(found)
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.total += float(found.sum())

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        """Its lines in the text format."""
        below = self.counts.cumsum().tolist()
        for bound, count in zip([*map(_number, self.bounds), "+Inf"], below, strict=True):
            yield _line(f"{name}_bucket", {**labels, "le": bound}, count)
        yield _line(f"{name}_sum", labels, self.total)
        yield _line(f"{name}_count", labels, below[-1])


class Metrics:
    """All that the service counts; the event loop and the model's thread write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started = time.time()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.refused: Counter[str] = Counter()
        self.predictions: Counter[tuple[str, str]] = Counter()
        self.labels: Counter[str] = Counter()
        self.reloads: Counter[str] = Counter()
        self.restarts = 0
        self.in_progress = 0
        self.seconds: dict[str, Histogram] = {}
        self.sizes, self.batch_seconds = Histogram(SIZES), Histogram(SECONDS)
        self.uncertainty: dict[str, Histogram] = {}

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests[route, status] += 1
        found = self.seconds.get(route)
        if found is None:
            found = self.seconds[route] = Histogram(SECONDS)
        # By hand: for a single value numpy's calls would cost more than the rest of a request.
        place = next((i for i, bound in enumerate(SECONDS) if seconds <= bound), len(SECONDS))
        found.counts[place] += 1
        found.total += seconds

    def batch(self, size: int, seconds: float) -> None:
        """Count a batch that the model worked on."""
        with self._lock:
            self.sizes.add([size])
            self.batch_seconds.add([seconds])

    def answered(self, served: Served, answers: Answers) -> None:
        """Count what was said."""
        with self._lock:
            if answers.codes is None:
                self.predictions["none", "none"] += len(answers.labels)
            else:
                for code, count in _counts(answers.codes):
                    self.predictions["abstain" if code else "accept", REASONS[code]] += count
            if len(served.classes) <= MOST_LABELS:
                for label, count in _counts(answers.labels):
                    self.labels[served.classes[label]] += count
            for name, values in answers.shares.items():
                if name not in self.uncertainty:
                    self.uncertainty[name] = Histogram(SHARES)
                self.uncertainty[name].add(values)

    def text(self, gauges: Mapping[str, tuple[str, float]], info: Labels) -> str:
        """Everything, with gauges {name: (help, value)} and what is known of the model."""
        with self._lock:
            return "".join(self._lines(gauges, info))

    def _lines(self, gauges: Mapping[str, tuple[str, float]], info: Labels) -> Iterator[str]:
        yield from _family("model_info", "gauge", "The model that is served.", [(info, 1)])
        for name, (about, value) in gauges.items():
            yield from _family(name, "gauge", about, [({}, value)])
        yield from _family(
            "requests_total", "counter", "Requests answered, by route and status.",
            [({"route": r, "status": str(s)}, n) for (r, s), n in self.requests.items()],
        )  # fmt: skip
        yield from _family(
            "refused_total", "counter", "Requests that got an error, by its code.",
            [({"code": code}, n) for code, n in self.refused.items()],
        )  # fmt: skip
        yield from _family(
            "predictions_total", "counter", "Inputs predicted; the share abstained is a ratio.",
            [({"decision": d, "reason": r}, n) for (d, r), n in self.predictions.items()],
        )  # fmt: skip
        yield from _family(
            "labels_total", "counter", "Labels predicted, accepted or not.",
            [({"label": label}, n) for label, n in self.labels.items()],
        )  # fmt: skip
        yield from _family(
            "reloads_total", "counter", "Bundles read again on request.",
            [({"outcome": outcome}, n) for outcome, n in self.reloads.items()],
        )  # fmt: skip
        yield from _family(
            "worker_restarts_total", "counter", "Times the model's thread was started again.",
            [({}, self.restarts)],
        )  # fmt: skip
        yield from self._histograms()
        yield from _process(self.started)

    def _histograms(self) -> Iterator[str]:
        yield from _head("request_seconds", "histogram", "Time from a request to its answer.")
        for route, held in self.seconds.items():
            yield from held.lines("dubito_request_seconds", {"route": route})
        yield from _head("batch_size", "histogram", "Inputs that the model was given at once.")
        yield from self.sizes.lines("dubito_batch_size", {})
        yield from _head("batch_seconds", "histogram", "Time that the model took for them.")
        yield from self.batch_seconds.lines("dubito_batch_seconds", {})
        about = "Uncertainty of predictions, as a share of the most it can be."
        yield from _head("uncertainty", "histogram", about)
        for name, held in self.uncertainty.items():
            yield from held.lines("dubito_uncertainty", {"measure": name})


def _counts(values: npt.NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    counted = np.bincount(values)
    return [(int(value), int(counted[value])) for value in counted.nonzero()[0]]


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP dubito_{name} {about}\n# TYPE dubito_{name} {kind}\n"


def _family(
    name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]
) -> Iterator[str]:
    yield from _head(name, kind, about)
    for labels, value in samples:
        yield _line(f"dubito_{name}", labels, value)


def _line(name: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {_number(value)}\n" if inner else f"{name} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: Any) -> str:
    return f"{value:.10g}"


def _process(started: float) -> Iterator[str]:
    yield "# HELP process_start_time_seconds Start of the service, since 1970.\n"
    yield f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started:.3f}\n"
    resident = resident_bytes()
    if resident is not None:
        yield "# HELP process_resident_memory_bytes Memory in use.\n"
        yield "# TYPE process_resident_memory_bytes gauge\n"
        yield f"process_resident_memory_bytes {resident}\n"


def resident_bytes() -> int | None:
    """Memory that this process holds; None where the system does not tell it so."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
