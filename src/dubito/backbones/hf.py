"""Networks of transformers for images and texts: "hf:NAME_OR_FOLDER".

An entry holds architecture and inputs by value, so that a saved model needs neither its checkpoint
nor a hub. Weights come from safetensors files, and code of a checkpoint never runs.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dubito._extras import need
from dubito.backbones.base import BACKBONES, Checkpoint, Shape, Size
from dubito.backbones.processor import image_inputs, text_inputs
from dubito.errors import DubitoError, reason
from dubito.types import Json, Options

__all__: list[str] = []

EXTRA = "transformers"
CONFIG, WEIGHTS = "config.json", ("model.safetensors", "model.safetensors.index.json")
#: files of a checkpoint on the hub
FILES = ["*.json", "*.txt", "*.model", "model.safetensors", "model-*.safetensors"]
#: settings that a network without its classifier does not need
LABELS = ("id2label", "label2id", "_name_or_path", "transformers_version")
#: largest difference of a classifier's outputs from a linear layer of the features
TOLERANCE = 1e-3


@BACKBONES.register("hf")
class HuggingFace(Checkpoint):
    """A network of transformers for images or texts; a classifier loses its last layer."""

    features: Literal["classifier", "pooler", "first", "mean"] | None = None
    """Input of the classifier's last layer; of an encoder its pooled output, the first of its
    tokens, or their mean; None: as the checkpoint is made for."""
    lora: Size | None = None
    """Rank of adapters that are trained in place of the weights, with the package peft."""

    def read(self) -> Options:
        if self.lora is not None:
            need("peft", "peft")
        folder = checkpoint(self.path)
        config = _read_config(folder)
        features: str = self.features or _default_features(folder, config)
        if self.features is not None:
            _load(folder, config, features)
        if _network_class(config, features).main_input_name == "pixel_values":
            expects = image_inputs(folder, config.get("num_channels", 3))
        else:
            expects, config["pad_token_id"] = text_inputs(folder, config.get("vocab_size"))
        path = str(folder) if Path(self.path).expanduser().is_dir() else self.path
        return {"path": path, "features": features, "config": config, "expects": expects}

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        config, features = self.config or {}, self.features or "classifier"
        if pretrained:
            network = _load(checkpoint(self.path), config, features)
        else:
            network = _new(config, features)
        is_text = network.main_input_name == "input_ids"
        if len(shape) != (1 if is_text else 3):
            needed = "texts" if is_text else "images (channels, height, width)"
            raise DubitoError(f"the backbone 'hf:{self.path}' needs {needed}, not inputs {shape}")
        try:
            built = Features(network, features, shape, config.get("pad_token_id"), self.dropout)
        except Exception as error:  # networks raise errors of many kinds
            raise DubitoError(
                f"the backbone 'hf:{self.path}' cannot read inputs of shape {shape}: "
                f"{reason(error)}"
            ) from error
        if pretrained and self.lora is not None:
            built.add_adapters(self.lora)
        return built

    def classifier(self) -> tuple[nn.Linear, tuple[str, ...] | None] | None:
        if self.features != "classifier":
            return None
        folder = checkpoint(self.path)
        network = _load(folder, self.config or {}, "classifier")
        layer = network.get_submodule(_last_layer(network))
        labels: Json = _read_json(folder / CONFIG).get("id2label") or {}
        names = tuple(str(labels.get(str(row), "")) for row in range(network.config.num_labels))
        is_named = "" not in names and names != tuple(f"LABEL_{row}" for row in range(len(names)))
        return layer, names if is_named else None


class Features(nn.Module):
    """Features of a network of transformers, (N, D).

    Args:
        network: Network; a classifier loses its last layer.
        features: What the features are; see `HuggingFace`.
        shape: Shape of one input.
        padding: Token that fills up short texts.
        dropout: Dropout rate; None is that of the network.
    """

    def __init__(
        self,
        network: Any,
        features: str,
        shape: Shape,
        padding: int | None,
        dropout: float | None,
    ) -> None:
        super().__init__()
        self.network, self.features, self.padding = network, features, padding
        self.is_text = network.main_input_name == "input_ids"
        self.options: Options = {}
        size = getattr(network.config, "image_size", None)
        if size not in (None, shape[-1], list(shape[1:])) and (
            "interpolate_pos_encoding" in signature(network.forward).parameters
        ):
            self.options["interpolate_pos_encoding"] = True
        layers = [layer for layer in network.modules() if isinstance(layer, nn.Dropout)]
        if dropout is not None:
            for layer in layers:
                layer.p = dropout
        self.dropout = nn.Identity() if layers or not dropout else nn.Dropout(dropout)
        example = torch.ones(1, *shape, dtype=torch.long) if self.is_text else torch.rand(1, *shape)
        self.eval()
        with torch.no_grad():
            if features == "classifier":
                self._remove_classifier(example)
            self.out_features = self(example).shape[1]
        self.train()

    def _remove_classifier(self, example: Tensor) -> None:
        name, outputs = _last_layer(self.network), self(example)
        layer = self.network.get_submodule(name)
        self.network.set_submodule(name, nn.Identity())
        with suppress(RuntimeError):  # shapes that do not fit
            if torch.allclose(layer(self(example)), outputs, rtol=TOLERANCE, atol=TOLERANCE):
                return
        raise DubitoError("its classifier is more than a linear layer of features")

    def forward(self, x: Tensor) -> Tensor:
        """Return the features.

        Args:
            x: Images (N, C, H, W), or tokens (N, L).
        """
        mask = None
        if self.is_text:
            first = torch.arange(x.shape[1], device=x.device) == 0  # also if it is empty
            mask = (first | (x != self.padding)).long()
            outputs = self.network(input_ids=x, attention_mask=mask)
        else:
            outputs = self.network(pixel_values=x, **self.options)
        return self.dropout(self._pooled(outputs, mask))  # type: ignore[no-any-return]

    def _pooled(self, outputs: Any, mask: Tensor | None) -> Tensor:
        if self.features == "classifier":
            return outputs.logits  # type: ignore[no-any-return]
        if self.features == "pooler":
            return outputs.pooler_output.flatten(1)  # type: ignore[no-any-return]
        states: Tensor = outputs.last_hidden_state
        if states.ndim == 4:  # images (N, D, H, W)
            states = states.flatten(2).transpose(1, 2)
        if self.features == "first":
            return states[:, 0]
        if mask is None:
            return states.mean(1)
        return (states * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)

    def add_adapters(self, rank: int) -> None:
        """Freeze the weights, and add adapters to the linear layers (https://arxiv.org/abs/2106.09685).

        Args:
            rank: Rank of the adapters.
        """
        peft = need("peft", "peft")
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        try:
            peft.inject_adapter_in_model(config, self.network)
        except ValueError as error:
            raise DubitoError(f"lora={rank} needs linear layers: {error}") from error

    def merge_adapters(self) -> None:
        """Add the adapters to the weights, and remove them."""
        for name, layer in [*self.network.named_modules()]:
            if hasattr(layer, "merge") and hasattr(layer, "get_base_layer"):
                layer.merge()
                self.network.set_submodule(name, layer.get_base_layer())


# --- checkpoints ---


def checkpoint(path: str) -> Path:
    """Return the folder of a checkpoint, from the hub if need be.

    Args:
        path: Folder, or name on the hub.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise DubitoError(f"there is no folder {path}")
    try:
        hub = need("huggingface_hub", EXTRA)
        return Path(hub.snapshot_download(path, allow_patterns=FILES))
    except Exception as error:  # the hub's are of many kinds
        if isinstance(error, DubitoError):
            raise
        raise DubitoError(
            f"{path} is no folder, and cannot be read from the hub; pass a folder: {reason(error)}"
        ) from None


def _read_json(path: Path) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DubitoError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise DubitoError(f"{path} has no object")
    return content


def _read_config(folder: Path) -> Json:
    """Return the configuration of a checkpoint, without its classes."""
    path = folder / CONFIG
    if not path.exists():
        raise DubitoError(
            f'{folder} has no {CONFIG}: save the network with save_pretrained("{folder}")'
        )
    config = _read_json(path)
    if config.get("model_type") not in need("transformers", EXTRA).CONFIG_MAPPING:
        kind = config.get("model_type")
        raise DubitoError(
            f"{folder} has the model type {kind!r}, which this version of transformers does not "
            "know; code of a checkpoint is not run"
        )
    if not any((folder / name).exists() for name in WEIGHTS):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        hint = " (weights in pickle format are not read)" if pickled else ""
        raise DubitoError(
            f"{folder} has no {WEIGHTS[0]}{hint}: save the network with save_pretrained of a "
            "present transformers"
        )
    return {name: value for name, value in config.items() if name not in LABELS}


def _classifier_name(config: Json) -> str | None:
    """Return the name of the class of a classifier; None: it is an encoder."""
    auto = need("transformers.models.auto.modeling_auto", EXTRA)
    known: set[str] = set()
    for mapping in (
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ):
        names = mapping.get(config["model_type"], ())
        known.update([names] if isinstance(names, str) else names)
    return next((name for name in config.get("architectures") or () if name in known), None)


def _network_class(config: Json, features: str) -> Any:
    """Return the class of a network."""
    transformers = need("transformers", EXTRA)
    kind, name = config["model_type"], _classifier_name(config)
    if features != "classifier":
        auto = need("transformers.models.auto.modeling_auto", EXTRA)
        name = auto.MODEL_MAPPING_NAMES.get(kind)
    network = getattr(transformers, name, None) if isinstance(name, str) else None
    if getattr(network, "main_input_name", None) not in ("pixel_values", "input_ids"):
        raise DubitoError(
            f"{config.get('architectures')} of the model type {kind!r} has no {features!r} "
            "features of images or texts"
        )
    return network


def _options(network: Any, features: str) -> Options:
    """Return the arguments with which a network has a pooler only if that is used."""
    has_option = "add_pooling_layer" in signature(network.__init__).parameters
    return {"add_pooling_layer": features == "pooler"} if has_option else {}


def _config(config: Json) -> Any:
    kind = need("transformers", EXTRA).CONFIG_MAPPING[config["model_type"]]
    return kind.from_dict({**config, "dtype": "float32"})


def _new(config: Json, features: str) -> Any:
    """Return a network with random weights."""
    network = _network_class(config, features)
    with _quiet():
        return network(_config(config), **_options(network, features))


def _load(folder: Path, config: Json, features: str) -> Any:
    """Return the network of a checkpoint, or raise if its weights are those of another."""
    network, missing, unexpected = _read_weights(folder, config, features)
    if missing or unexpected:
        name, more = (missing or unexpected)[0], len(missing) + len(unexpected) - 1
        what = "lacks" if missing else "has besides"
        raise DubitoError(
            f"{folder} has the weights of another architecture than its {CONFIG}: it {what} "
            f"{name!r}{f' (and {more} more differ)' if more else ''}"
        )
    return network


def _read_weights(folder: Path, config: Json, features: str) -> tuple[Any, list[str], list[str]]:
    """Return a network, and the names of weights that are missing or of no use."""
    kind = _network_class(config, features)
    labels = {name: value for name, value in _read_json(folder / CONFIG).items() if name in LABELS}
    try:
        with _quiet():
            network, info = kind.from_pretrained(
                folder,
                config=_config({**labels, **config}),
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **_options(kind, features),
            )
    except Exception as error:  # of any kind
        raise DubitoError(f"cannot read the network of {folder}: {reason(error)}") from error
    missing = [*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]
    unexpected = list(info["unexpected_keys"])
    if features != "classifier":  # heads are of no use to an encoder
        own = {name for name, _ in network.named_children()}
        prefix = f"{network.base_model_prefix}."
        unexpected = [k for k in unexpected if k.removeprefix(prefix).partition(".")[0] in own]
    return network, sorted(missing), sorted(unexpected)


def _default_features(folder: Path, config: Json) -> str:
    """Choose what features are, and check the weights."""
    if _classifier_name(config) is not None:
        _load(folder, config, "classifier")
        return "classifier"
    if _network_class(config, "pooler").main_input_name == "input_ids":
        _load(folder, config, "mean")
        return "mean"
    _, missing, _ = _read_weights(folder, config, "pooler")
    if not any("pooler" in name for name in missing):
        _load(folder, config, "pooler")
        return "pooler"
    network = _load(folder, config, "mean")  # the pooler was not trained
    has_first = any(name.endswith("cls_token") for name, _ in network.named_parameters())
    return "first" if has_first else "mean"


def _last_layer(network: Any) -> str:
    """Return the name of the last linear layer of a classifier."""
    layers: list[str] = [
        name
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear)
        and layer.out_features == network.config.num_labels
        and not name.startswith(f"{network.base_model_prefix}.")
    ]
    if not layers:
        raise DubitoError(f"{type(network).__name__} has no linear layer of its classes")
    return layers[-1]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence notes and progress of transformers; problems are errors of ours."""
    logging = need("transformers.utils.logging", EXTRA)
    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()
