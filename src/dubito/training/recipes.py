"""Recipes: settings of a training that suit a network, its data and the device.

A recipe only says what the user did not. Networks without one keep the defaults of `TrainConfig`.
"""

from torch.nn.modules.batchnorm import _BatchNorm

from dubito.backbones import BACKBONES
from dubito.backbones.default import is_photo
from dubito.formats import FORMATS
from dubito.methods.base import Network
from dubito.model import Model
from dubito.training.config import TrainConfig
from dubito.types import Options

__all__: list[str] = []

#: a new head on features of a pretrained network, which take no time to learn
HEAD: Options = {
    "optimizer": "adamw", "lr": 2e-3, "schedule": "cosine",
    "optimizer_options": {"weight_decay": 0.01}, "keep": "last",
}  # fmt: skip
#: a pretrained network, from a trained head
FINE_TUNING: Options = {
    "batch_size": 32, "optimizer": "adamw", "optimizer_options": {"weight_decay": 0.05},
    "schedule": "cosine", "warmup_steps": 0.1, "max_grad_norm": 1.0,
    "first_epoch": 40,  # loss weights do not start again
}  # fmt: skip
#: rate by kind of network: convolutions with batch norm, others such as transformers, adapters
RATES = {"batch norm": 3e-4, "layer norm": 5e-5, "lora": 5e-4}
#: rate of the head, as a multiple of the others
HEAD_FACTOR = 3
#: what a device has time for: the network has few epochs, of so many samples in all
DEVICES: dict[str, Options] = {
    "cpu": {"freeze_stages": 0.5},
    "cuda": {"layer_decay": 0.8, "precision": "bfloat16"},
}
SAMPLES = {"cpu": 15_000, "cuda": 60_000}
EPOCHS = {"cpu": (1, 20), "cuda": (5, 30)}
#: samples below which batch norm keeps its statistics on a GPU; on a CPU that is also faster
FEW = 5_000
#: steps from which weights are averaged
MANY_STEPS, EMA_DECAY = 1_000, 0.999
#: changes of photos in a few epochs
AUGMENT = {"name": "photo", "scale": 0.7}
#: field -> fields of a recipe that are of no use beside a value of it
DEPENDENT = {
    "optimizer": ("optimizer_options", "lr", "param_groups"),
    "average_epochs": ("ema_decay",),
    "schedule_by": ("warmup_steps",),
}
#: photos without pretrained weights, and on a CPU the samples of all epochs and the fewest epochs
PHOTOS: Options = {
    "batch_size": 32, "optimizer": "adamw", "lr": 2e-3, "schedule": "cosine",
    "optimizer_options": {"weight_decay": 0.05}, "warmup_steps": 0.1, "max_grad_norm": 1.0,
    "augment": "photo",
}  # fmt: skip
PHOTO_SAMPLES, FEWEST_PHOTO_EPOCHS = 40_000, 5
#: numbers from tables, with eight steps per epoch up to the largest batch
NUMBERS: Options = {
    "epochs": 40, "optimizer": "adamw", "schedule": "cosine", "patience": 0,
}  # fmt: skip
NUMBERS_BATCH = (16, 256)
#: samples from which numbers have the second rate and weight decay: where there is hardly any
#: noise, errors of the first ones are several times as large
MANY_NUMBERS, NUMBER_RATES, NUMBER_DECAYS = 2_000, (2e-2, 1e-2), (0.5, 0.1)


def numbers_options(count: int) -> tuple[float, float]:
    """Return learning rate and weight decay of AdamW for numbers from a table.

    Args:
        count: Number of training samples.
    """
    is_large = count >= MANY_NUMBERS
    return NUMBER_RATES[is_large], NUMBER_DECAYS[is_large]


def with_recipe(config: TrainConfig, model: Model, count: int, device: str) -> TrainConfig:
    """Return a configuration with the recipe for a model, but for what is set.

    Args:
        config: Configuration; a field that was given wins over the recipe.
        model: Model, trained or not.
        count: Number of training samples.
        device: Kind of the device, "cpu" or another.
    """
    own = {name: getattr(config, name) for name in config.model_fields_set}
    chosen = recipe(config, model, count, "cpu" if device == "cpu" else "cuda")
    unused = {other for name, others in DEPENDENT.items() if own.get(name) for other in others}
    return TrainConfig(**{k: v for k, v in chosen.items() if k not in unused} | own)


def recipe(config: TrainConfig, model: Model, count: int, device: str) -> Options:
    """Return the recipe for a model; empty without one.

    Args:
        config: Configuration, whose learning rate and epochs the rest follows.
        model: Model.
        count: Number of training samples.
        device: "cpu" or "cuda".
    """
    format, entry = model.preprocessing.inputs, model.backbone
    has_photos = is_photo(format.shape, FORMATS.name_of(format))
    if entry is None or not entry.pretrained:
        name = None if entry is None else BACKBONES.name_of(entry)
        is_dense = name in ("mlp", "tabular") and len(format.shape) == 1
        if is_dense and model.task.kind == "regression":
            least, most = NUMBERS_BATCH
            lr, decay = numbers_options(count)
            return NUMBERS | {
                "batch_size": min(max(count // 8, least), most),
                "lr": lr,
                "optimizer_options": {"weight_decay": decay},
            }
        if name != "resnet" or not has_photos:
            return {}
        epochs = max(round(PHOTO_SAMPLES / count), FEWEST_PHOTO_EPOCHS)
        return PHOTOS | ({"epochs": epochs} if device == "cpu" else {})
    modules = dict(model.network.named_modules())
    has_batch_norm = any(isinstance(module, _BatchNorm) for module in modules.values())
    kind = "batch norm" if has_batch_norm else "layer norm"
    chosen = FINE_TUNING | DEVICES[device]
    if has_adapters(model):  # they are few, and in all layers
        kind, chosen = "lora", FINE_TUNING
    lr = config.lr if "lr" in config.model_fields_set else RATES[kind]
    heads = [f"{name}.head.*".lstrip(".") for name, m in modules.items() if isinstance(m, Network)]
    least, most = EPOCHS[device]
    epochs = config.epochs or min(max(round(SAMPLES[device] / count), least), most)
    steps = epochs * count // config.batch_size
    return {
        **chosen,
        "lr": lr,
        "epochs": epochs,
        "param_groups": {name: {"lr": HEAD_FACTOR * lr} for name in heads},
        "freeze_batch_norm": device == "cpu" or count < FEW,
        "augment": AUGMENT if has_photos else None,
        "ema_decay": EMA_DECAY if device != "cpu" and steps > MANY_STEPS else None,
    }


def has_adapters(model: Model) -> bool:
    """Return whether adapters are trained in place of the weights of a model.

    Args:
        model: Model.
    """
    return getattr(model.backbone, "lora", None) is not None
