"""Networks of timm for images: "timm:NAME", "timm:hf-hub:NAME" or "timm:local-dir:FOLDER".

As in `hf`, an entry holds architecture and inputs by value, and weights in pickle format are not
read from a folder.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dubito._extras import need
from dubito.backbones.base import BACKBONES, Checkpoint, Shape, chain
from dubito.errors import DubitoError, reason
from dubito.formats import ImageFormat, Preprocessing, Resize
from dubito.formats.images import mode_of
from dubito.types import Json, Options

__all__: list[str] = []

LOCAL, HUB = "local-dir:", "hf-hub:"
#: timm's crop mode -> ours
FITS = {"center": "crop", "squash": "stretch", "border": "pad"}


@BACKBONES.register("timm")
class Timm(Checkpoint):
    """A network of timm without its classifier."""

    def read(self) -> Options:
        network = _load(self.path)
        return {"config": _config(self.path, network), "expects": _inputs(network)}

    def build(self, shape: Shape, *, pretrained: bool = False) -> nn.Module:
        config = self.config or {}
        sized = {"img_size": shape[1:]} if config["fixed_input_size"] else {}
        if pretrained:
            network = _load(self.path, num_classes=0, **sized)
        else:
            options = {**config["model_args"], **sized, "num_classes": 0}
            network = need("timm", "timm").create_model(config["architecture"], **options)
        try:
            with torch.no_grad():
                size = network.eval()(torch.zeros(1, *shape)).shape[1]
        except (RuntimeError, AssertionError) as error:
            raise DubitoError(
                f"the backbone 'timm:{self.path}' cannot read inputs of shape {shape}: "
                f"{reason(error)}"
            ) from error
        return chain(size, dropout=self.dropout, network=network.train())

    def classifier(self) -> tuple[nn.Linear, tuple[str, ...] | None] | None:
        network = _load(self.path)
        layer, names = network.get_classifier(), network.pretrained_cfg.get("label_names")
        if not isinstance(layer, nn.Linear):
            return None
        return layer, tuple(names) if names and len(names) == layer.out_features else None


def _load(path: str, **options: Any) -> Any:
    """Return the network of a checkpoint."""
    timm = need("timm", "timm")
    folder = Path(path.removeprefix(LOCAL))
    if path.startswith(LOCAL) and not any(folder.glob("*.safetensors")):
        raise DubitoError(
            f"{folder} has no weights in safetensors format: save them with "
            "timm.models.save_for_hf(network, folder, safe_serialization=True)"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return timm.create_model(path, pretrained=True, **options)
    except Exception as error:  # of any kind
        raise DubitoError(f"cannot read the network {path}: {reason(error)}") from error


def _config(path: str, network: Any) -> Json:
    """Return the architecture of a network and its arguments."""
    own, options = network.pretrained_cfg, {}
    if path.startswith(LOCAL):
        content = Path(path.removeprefix(LOCAL), "config.json").read_bytes()
        options = json.loads(content).get("model_args", {})
    elif path.startswith(HUB):
        name = path.removeprefix(HUB)
        options = need("timm.models", "timm").load_model_config_from_hf(name)[2] or {}
    is_fixed = bool(own.get("fixed_input_size"))
    return {
        "architecture": own["architecture"], "model_args": options, "fixed_input_size": is_fixed
    }  # fmt: skip


def _inputs(network: Any) -> Preprocessing:
    """Return the inputs of a network, as timm transforms them for evaluation."""
    config = need("timm.data", "timm").resolve_data_config({}, model=network)
    channels, *size = config["input_size"]
    mode = mode_of(channels)
    fit, share = FITS[config["crop_mode"]], config["crop_pct"]
    if fit == "pad":
        warnings.warn("timm pads images with their mean color, dubito with black", stacklevel=2)
    resize = Resize(fit=fit, crop_pct=share, interpolation=config["interpolation"])  # type: ignore[arg-type]
    format = ImageFormat(size=tuple(size), mode=mode, resize=resize)
    return Preprocessing(inputs=format, mean=tuple(config["mean"]), std=tuple(config["std"]))
