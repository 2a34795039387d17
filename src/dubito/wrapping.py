"""From a network that is already trained to a model, without training.

Each of the given samples serves one purpose: it fits the scores, or it calibrates.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from dubito import _checks
from dubito.backbones import BACKBONES, Backbone
from dubito.config import SHORT, RunConfig
from dubito.data import Source
from dubito.data.base import Items, take
from dubito.errors import DubitoError, reason
from dubito.formats import Preprocessing
from dubito.formats.images import ImageFormat, kind_of
from dubito.methods.base import Network
from dubito.model import Model
from dubito.model.check import check_outputs
from dubito.model.model import FAMILIARITY, run_network
from dubito.pipeline import Pipeline, Prepared
from dubito.plugins import import_function
from dubito.runs import save
from dubito.scores import SCORES
from dubito.tasks import Classification, class_names
from dubito.training import History
from dubito.types import Options

__all__: list[str] = []

#: a network, a backbone with a classifier, or the name of one
AnyNetwork = nn.Module | Backbone | Mapping[str, object] | str
#: some inputs with outputs or labels, or a function from inputs to these
Check = tuple[object, object] | Callable[[Any], object]

MODULE = "module:"
#: settings that only a training has, or that are parameters of `dubito.wrap`
TRAINING = {"training", "method", "backbone"}
TRAINING |= {f"data.{name}" for name in ("selection", "folds", "train_ood", "class_weight")}
TRAINING |= {f"data.{name}" for name in ("standardize", "task", "tolerance", "calibration")}
#: files of each kind, and other inputs, that a function checks
CHECKED, CHECKED_ROWS = 4, 32
#: samples that show the order of the classes
ORDER_ROWS = 1000


class Trained(NamedTuple):
    """A network that is already trained: a module, or a backbone and its last layer.

    Attributes:
        name: Name for messages.
        module: Module from normalized inputs (N, *shape) to outputs (N, M); of a backbone its last
            layer.
        entry: Backbone, or None.
        classes: Names of the classes in the order of the outputs, if known.
    """

    name: str
    module: nn.Module
    entry: Backbone | None = None
    classes: tuple[str, ...] | None = None

    @classmethod
    def read(cls, network: AnyNetwork, weights: str | None) -> "Trained":
        """Read a network.

        Args:
            network: Network or its name.
            weights: File of the weights of a module.
        """
        if isinstance(network, str) and network.startswith(MODULE):
            network = _built(network)
        if isinstance(network, nn.Module):
            if weights is not None:
                _load_weights(network, Path(weights))
            return cls(type(network).__name__, network)
        if weights is not None:
            raise DubitoError(f"weights={weights!r} is for a module: leave it out")
        entry = BACKBONES.build(network)
        name = network if isinstance(network, str) else BACKBONES.name_of(entry)
        found = entry.classifier()
        if found is None:
            raise DubitoError(
                f"{name} has no classifier: train one for your classes with dubito train "
                f"--backbone {name}"
            )
        return cls(name, found[0], entry, found[1])

    def network(self, shape: tuple[int, ...]) -> nn.Module:
        """Return the module from normalized inputs to outputs.

        Args:
            shape: Shape of one input.
        """
        if self.entry is None:
            return self.module
        layer: Any = self.module
        if layer.bias is None:  # as heads have one
            layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
        return Network(self.entry.network(shape, pretrained=True), layer)


def _built(name: str) -> nn.Module:
    """Call the function of "module:file.py:function"."""
    factory = import_function(name.removeprefix(MODULE))
    try:
        signature(factory).bind()
    except TypeError as error:
        raise DubitoError(f"{name} is called without arguments, but {error}") from None
    module = factory()
    if not isinstance(module, nn.Module):
        raise DubitoError(f"{name} returns {type(module).__name__}, not a module")
    return module


def _load_weights(network: nn.Module, file: Path) -> None:
    """Load a state dict into a module, without executing what a file may contain."""
    try:
        if file.suffix == ".safetensors":
            state: Any = safetensors.load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        network.load_state_dict(state)
    except (OSError, SafetensorError) as error:
        raise DubitoError(f"cannot read the weights {file}: {error}") from None
    except Exception as error:  # torch's are of several kinds
        raise DubitoError(
            f"{file} is not what torch.save(network.state_dict()) writes for this network: "
            f"{reason(error)}"
        ) from None


def is_for_training(setting: str) -> bool:
    """Return whether only a training has a setting.

    Args:
        setting: Field, perhaps with its section: "lr", "training.lr".
    """
    full = SHORT.get(setting, setting)
    return full in TRAINING or full.partition(".")[0] in TRAINING


def configuration(trained: Trained, calibration: float, settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a wrapped network.

    Args:
        trained: Network.
        calibration: Share of the samples that calibrate.
        settings: See `dubito.wrap`.
    """
    for key, value in settings.items():
        if is_for_training(key):
            raise DubitoError(f"{key}={value!r} is for training: leave it out")
    fixed: Options = {"method": "softmax", "data.calibration": calibration}
    if trained.entry is not None:
        fixed["backbone"] = BACKBONES.to_dict(trained.entry)
    run = RunConfig.merge(None, {**settings, **fixed})
    wanted, data = run.inputs(), run.data
    if trained.entry is not None and wanted is None and (data.size is None or data.mean is None):
        raise DubitoError(
            f"{trained.name} does not say which images it was trained on: pass size, mean and std"
        )
    return run


def wrap(
    trained: Trained,
    run: RunConfig,
    data: Any,
    device: torch.device,
    *,
    classes: Sequence[str] | None,
    check: Check | None,
    out: Path | None,
    report: bool,
    on_start: Callable[[str], Any] | None,
) -> Model:
    """Open and divide data, build a model, check it, fit it and save it.

    Args:
        trained: Network.
        run: Result of `configuration`.
        data: See `dubito.wrap`, as the other arguments.
        device: Device of the model.
        classes: Names of the classes in the order of the outputs.
        check: Function of inputs, or a pair.
        out: Folder of the model.
        report: Write report.html.
        on_start: Function that is called with a line about data and model.
    """
    run, source = open_data(run, data, is_known=trained.entry is not None)
    wanted, mean, std = run.inputs(), run.data.mean, run.data.std
    if mean is None and wanted is not None:
        mean, std = wanted.mean, wanted.std
    fitted = False if mean is None else None  # never to these data
    preprocessing = Preprocessing.fit(source.format, torch.empty(0), fitted, mean=mean, std=std)
    network = trained.network(preprocessing.shape).eval()
    features, outputs = _blank(network, preprocessing)
    if features is not None and run.policy.ood_score is None:
        posthoc = run.posthoc if FAMILIARITY in run.scores else (*run.posthoc, FAMILIARITY)
        run = RunConfig.merge(run, {"posthoc": posthoc, "policy.ood_score": FAMILIARITY})
    pipeline = Pipeline(run, device=device)
    names = trained.classes if classes is None else [*map(str, classes)]
    prepared = prepare(pipeline, source, trained.name, names, outputs.shape[1])
    parts = (run.method, prepared.task, preprocessing)
    model = Model(network, *parts, backbone=trained.entry).to(device)
    model.check_scores(run.posthoc)
    if on_start is not None:
        on_start(describe(trained.name, pipeline, prepared))
    compare(model, source, check)
    if names is None:
        check_order(model, prepared.parts[0].train)
    prediction = pipeline.finish(model, prepared, History(), seed=0)
    if out is not None:
        save(model, prepared, prediction, History(), out, report)
    return model


def describe(name: str, pipeline: Pipeline, prepared: Prepared) -> str:
    """Say in a line which samples do what, and what the promise rests on.

    Args:
        name: Name of the network.
        pipeline: Pipeline.
        prepared: Divided data.
    """
    fitted, calibrating = prepared.samples.values()
    scores = " and ".join(map(SCORES.name_of, pipeline.config.posthoc)) or "no score"
    return (
        f"{prepared.source.name}: {fitted:,} samples fit {scores}, {calibrating:,} calibration and "
        f"policy, {prepared.task.size} classes; network {name}, {pipeline.device}. The "
        "promise holds if none of these samples trained the network or chose its epoch"
    )


def open_data(run: RunConfig, data: Any, is_known: bool) -> tuple[RunConfig, Source]:
    """Open data as the network expects it; return the configuration with the format.

    Args:
        run: Configuration.
        data: Labeled data.
        is_known: Whether the network says what it expects.
    """
    own = run.data.model_copy(update={"on_error": "report"})  # nothing is decoded yet
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = run.model_copy(update={"data": own}).open(data)
    format = source.format
    if not isinstance(format, ImageFormat) or run.data.format is not None:
        return run, run.open(data)
    if not is_known and run.data.size is None and _files(source):
        raise DubitoError(
            f"the network does not say which images of {source.name} it was trained on: pass "
            "size, and fit, mode, mean and std if they differ from stretched images with pixels "
            "from 0 to 1"
        )
    if text := run.input_warning():
        warnings.warn(text, stacklevel=3)
    # As the loaders of networks from elsewhere do.
    format = replace(format, transparency="drop", draft=False)
    run = RunConfig.merge(run, {"data.format": format})
    return run, run.data.open(data, format=format, resize=True)


def prepare(
    pipeline: Pipeline, source: Source, network: str, names: Sequence[str] | None, count: int
) -> Prepared:
    """Divide data, and find the classes of the outputs.

    Args:
        pipeline: Pipeline.
        source: Labeled data.
        network: Name of the network.
        names: Names of the classes in the order of the outputs; None: unknown.
        count: Number of outputs.
    """
    prepared = pipeline.prepare(source)
    names = _names(source.name, prepared.task.names, names, count, network)
    train, _, calibration = prepared.parts[0]
    if calibration is None:
        raise DubitoError("calibration=0 leaves no samples to calibrate with")
    counts = Counter(class_names(train.target))
    if absent := [name for name in names if not counts[name]]:
        raise DubitoError(
            f"{len(source)} samples of {source.name} are too few: none of {len(train)} that fit "
            f"the scores is of {_checks.listed(absent[:3])}; pass more samples"
        )
    task = Classification(classes=names, counts=tuple(counts[name] for name in names))
    return replace(prepared, task=task, purpose="scores")


def _blank(network: nn.Module, preprocessing: Preprocessing) -> tuple[Tensor | None, Tensor]:
    """Return features and outputs of blank inputs."""
    format = preprocessing.inputs
    try:
        with torch.no_grad():
            blank = format.blank(2)
            features, outputs = run_network(network, preprocessing, blank, with_features=True)
    except Exception as error:  # networks raise errors of many kinds
        name = type(network).__name__
        raise DubitoError(
            f"{name} cannot read inputs of shape {format.shape}: {reason(error)}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        raise DubitoError(
            f"{type(network).__name__} returns {type(outputs).__name__}, not logits (N, classes); "
            "save a network of transformers with save_pretrained, and wrap 'hf:FOLDER'"
        )
    return features, outputs


def _names(
    source: str, own: Sequence[str], names: Sequence[str] | None, count: int, network: str
) -> tuple[str, ...]:
    """Return the classes in the order of the outputs."""
    if len(own) != count or (names is not None and len(names) != count):
        given = f"{source} has {len(own)} ({_shown(own)})"
        if names is not None and len(names) != count:
            given = f"classes has {len(names)} names"
        raise DubitoError(
            f"{network} has {count} classes{f' ({_shown(names)})' if names else ''}, but {given}: "
            "pass samples of each of its classes, and of no others; or dubito train"
        )
    if names is None:
        return tuple(own)
    if {*names} != {*own}:
        foreign = [name for name in own if name not in names]
        raise DubitoError(
            f"{network} has the classes {_shown(names)}, but {source} has {_shown(foreign)}: name "
            "them alike, or pass classes=..., the names of the outputs in their order"
        )
    return tuple(names)


def _shown(names: Sequence[str]) -> str:
    return _checks.listed(names[:5]) + (", ..." if len(names) > 5 else "")


def compare(model: Model, source: Source, given: Check | None) -> None:
    """Compare outputs with those that the caller computed; name kinds of images that are not.

    Args:
        model: Model.
        source: Labeled data, of which a function gets some inputs.
        given: See `dubito.wrap`.
    """
    files = _files(source)
    kinds: dict[str, list[tuple[int, str]]] = {}  # -> pixels and file
    for file in files:
        kind, pixels = kind_of(file)
        kinds.setdefault(kind, []).append((pixels, file))
    covered: Counter[str] = Counter()
    if callable(given):
        if not isinstance(source, Items):
            raise DubitoError(
                "check: pass a pair of inputs and outputs for these data, no function"
            )
        if files:
            items: Any = [file for group in kinds.values() for _, file in _spread(sorted(group))]
        else:
            step = max(1, len(source) // CHECKED_ROWS)
            items = take(source.items, range(0, len(source), step)[:CHECKED_ROWS])
        given = (items, given(items))
    if given is not None:
        inputs, expected = given
        check_outputs(model, inputs, expected)
        if isinstance(inputs, Sequence) and files:
            covered.update(kind_of(item)[0] for item in inputs if isinstance(item, str | Path))
    others = {kind: len(group) for kind, group in kinds.items() if kind not in covered}
    # Common loaders leave turned images as they lie, and clip 16 bits.
    odd = [kind for kind in others if given or "turned" in kind or kind.startswith("I;16")]
    if odd:
        shown = ", ".join(f"{others[kind]} {kind}" for kind in odd)
        warnings.warn(
            f"no image of these kinds was compared with your own loop: {shown}. Loaders differ: "
            "here images are turned upright, transparency is dropped, and 16 bits are not clipped. "
            "check=function, from files to outputs, compares images of each kind",
            stacklevel=3,
        )


def _files(source: Source) -> list[str]:
    """Return the image files of a source; empty if it has none."""
    items = source.items if isinstance(source, Items) else None
    if not isinstance(source.format, ImageFormat) or not isinstance(items, list):
        return []
    return [str(item) for item in items if isinstance(item, Path)]


def _spread(group: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return some of a sorted list, the first and the last included."""
    steps = torch.linspace(0, len(group) - 1, min(CHECKED, len(group)))
    return [group[int(step)] for step in steps]


def check_order(model: Model, samples: Source) -> None:
    """Raise if the outputs clearly fit the classes in another order.

    Args:
        model: Model.
        samples: Labeled samples that do not calibrate.
    """
    rows = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))[:ORDER_ROWS]
    some = samples.subset(rows)
    point, target = model.predict(some).point.cpu(), model.task.encode(some.target)
    size = model.task.size
    counts = torch.bincount(point * size + target, minlength=size**2).view(size, size)
    best, right, most = counts.argmax(1), int(counts.diagonal().sum()), int(counts.amax(1).sum())
    if len(best.unique()) == size and most > 2 * right:
        names = tuple(model.task.names[place] for place in best.tolist())
        raise DubitoError(
            f"{right} of {len(some)} labels are right, and {most} with the classes in another "
            f"order: pass classes={names}"
        )
