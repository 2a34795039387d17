"""State of a service: the model in use, limits that requests share, and metrics."""

from __future__ import annotations

import collections
import hashlib
import logging
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from starlette.exceptions import HTTPException

from dubito.api import AnyModel, Factory, load_model
from dubito.distributions import Distribution
from dubito.formats import Encoded
from dubito.methods import METHODS
from dubito.model import Model
from dubito.model.folder import MODEL
from dubito.model.prediction import NOT_FINITE
from dubito.serve.batcher import Batcher, Question
from dubito.serve.config import ServeConfig
from dubito.serve.engines import choose, plan
from dubito.serve.inputs import JSON, InputReader, Item, media_type
from dubito.serve.limits import Memory, Slots, in_thread
from dubito.serve.schema import ModelInfo
from dubito.types import Json

__all__: list[str] = []

log = logging.getLogger(__name__)
#: Files that are decoded at a time. Large JSON is parsed one at a time: it keeps the interpreter.
DECODERS = 2
#: JSON bodies up to this size are read without a thread, which would take longer to wake
SMALL = 1 << 15
#: Seconds that a request waits for a slot, and then for its refusal: clients that try again at once
#: would take the time that answers need.
BUSY_DELAY = 0.5
#: buckets of histograms
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
UNCERTAINTIES = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
#: Seconds that a batch may take in the thread of the event loop. A thread would not be better: it
#: keeps the interpreter for as long (`sys.getswitchinterval`), and waking it takes time.
BRIEF = 0.005


class Metrics:
    """Metrics of a service for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        requests = counter("dubito_requests", "Requests for predictions", ["status"])
        predictions = counter("dubito_predictions", "Predictions", ["label", "reason"])
        # Finding the counter of a label takes longer than counting.
        self.requests, self.predictions = cache(requests.labels), cache(predictions.labels)
        self.seconds = histogram("dubito_request_seconds", "Duration of requests")
        self.batches = histogram("dubito_batch_size", "Inputs in a batch", buckets=SIZES)
        self.epistemic = histogram("dubito_epistemic", "Uncertainty", buckets=UNCERTAINTIES)

    def observe_batch(self, rows: Sequence[Json]) -> None:
        """Count predictions; when inputs drift, reasons and uncertainty change first.

        Args:
            rows: Rows of `Prediction.rows`.
        """
        self.batches.observe(len(rows))
        for labels, count in collections.Counter(map(_labels, rows)).items():
            self.predictions(*labels).inc(count)
        for row in rows:
            if "epistemic" in row:
                self.epistemic.observe(row["epistemic"])


def _labels(row: Json) -> tuple[str, str]:
    label = row.get("prediction")
    return label if isinstance(label, str) else "", row.get("reason", "")


class LoadedModel:
    """A model with its engine, the reader of its inputs and the batcher of its requests.

    The first predictions, which are slow, are made here.

    Args:
        model: Model, or its folder.
        network: Factory of a custom network; see `load_model`.
        service: Service, whose configuration and metrics it uses.
    """

    def __init__(self, model: AnyModel, network: Factory | None, service: Service) -> None:
        self._metrics, config = service.metrics, service.config
        self.model = load_model(model, config.device, network)
        self.name, self.version = "model", "unsaved"
        if not isinstance(model, Model):
            path = Path(model, MODEL).resolve()
            self.name = path.parent.name
            self.version = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        self.engine = choose(self.model, config.engine, config.threads)
        self.reader = InputReader(self.model.preprocessing.inputs, config)
        takes, short = plan(self.engine, self.reader.format, config.batch_size)
        self.batcher = Batcher(self._predict, config.batch_size, short, in_thread=takes > BRIEF)
        self.input_bytes = self.reader.format.blank(1).nbytes
        self.info = self._info(config)

    async def predict(
        self, items: Sequence[Item], evidence: bool, client: str, is_gone: Question
    ) -> list[Json]:
        """Return a row for each input.

        Args:
            items: Inputs, as the reader returns them.
            evidence: Whether to add the evidence of a Dirichlet.
            client: Address of the client.
            is_gone: Returns whether the client has left.
        """
        rows = await self.batcher.submit([(item, evidence) for item in items], client, is_gone)
        for index, row in enumerate(rows):
            if row.get("error", NOT_FINITE) != NOT_FINITE:
                raise HTTPException(422, f"{self.reader.key}.{index}: {row['error']}")
        return rows

    def _predict(self, inputs: list[tuple[Item, bool]]) -> list[Json]:
        """Predict a batch of inputs, each with whether to add the evidence."""
        values, shown = zip(*inputs, strict=True)
        prediction = self.engine(self.reader.encode(values))
        rows = list(prediction.rows())
        if any(shown):
            evidence = _evidence(prediction.distribution, self.model.task.names)
            for row, show, more in zip(rows, shown, evidence, strict=False):
                row.update(more if show and "error" not in row else {})
        self._metrics.observe_batch(rows)
        return rows

    def _info(self, config: ServeConfig) -> ModelInfo:
        model, limits = self.model, ("max_body", "max_json", "max_inputs", "max_pixels")
        example = self.engine(Encoded(self.reader.format.blank(1), {}, {}))
        names = (name.partition("probs.")[1].strip(".") or name for name in example.columns())
        return ModelInfo(
            name=self.name,
            version=self.version,
            engine=self.engine.name,
            task=model.task,  # type: ignore[arg-type]
            inputs=model.preprocessing.inputs,
            method=METHODS.to_dict(model.method),
            policy=model.policy,
            levels=getattr(model.calibration, "levels", ()),
            shape=model.preprocessing.shape,
            media_types=list(self.reader.media_types),
            columns=list(dict.fromkeys(names)),
            unit=example.distribution.unit,
            evidence=bool(_evidence(example.distribution, model.task.names)),
            drawing=None,
            limits={name: getattr(config, name) for name in limits},
        )


def _evidence(dist: Distribution, classes: Sequence[str]) -> list[Json]:
    """Return vacuity, belief and alpha for each input; nothing if there is no belief."""
    if "vacuity" not in dist.scores or not hasattr(dist, "belief"):
        return []
    shares = {name: getattr(dist, name).tolist() for name in ("belief", "alpha")}
    return [
        {"vacuity": vacuity}
        | {name: dict(zip(classes, values[row], strict=True)) for name, values in shares.items()}
        for row, vacuity in enumerate(dist.score("vacuity").tolist())
    ]


class Service:
    """The model in use, and the limits that requests share.

    Args:
        model: Model, or its folder, which can be loaded again.
        network: Factory of a custom network; see `load_model`.
        config: Configuration.
    """

    def __init__(self, model: AnyModel, network: Factory | None, config: ServeConfig) -> None:
        self.config, self.metrics = config, Metrics()
        self.memory = Memory(config.memory)
        self.slots = Slots(config.max_requests, BUSY_DELAY)
        self._load = partial(LoadedModel, model, network, self)
        self.loaded = self._load()
        self._parsing, self._decoding = Slots(1), Slots(DECODERS)

    def reload(self) -> None:
        """Load the folder again; keep the present model if that fails."""
        try:
            self.loaded = self._load()
            log.info("reloaded the model, version %s", self.loaded.version)
        except Exception as error:  # of any kind: the present model still works
            log.error("the model was not reloaded: %s", error)

    async def read(
        self, reader: InputReader, content_type: str, body: bytes, client: str
    ) -> Sequence[Item]:
        """Read inputs, in a thread if that may take long; see `InputReader.read`."""
        is_json = media_type(content_type) == JSON
        if is_json and len(body) <= SMALL:
            return reader.read(content_type, body)
        async with (self._parsing if is_json else self._decoding).take(client):
            return await in_thread(partial(reader.read, content_type, body))
