"""Sanity check: what a policy accepts of images that show nothing it was trained on.

No out-of-distribution inputs are at hand after a training, but some can be made of its own images:

- *noise*: each value is uniform between the least and the largest one of the images;
- *flat*: one color, drawn in the same way;
- *inverted*: light and dark are exchanged;
- *shuffled*: the tiles of a grid are in random order.

An inverted or shuffled image may still show its class, and an answer that is right does no harm.
Of noise and flat images all answers are wrong.
"""

import numpy as np
import torch
from torch import Tensor

from dubito.data import Source
from dubito.data.base import Items
from dubito.formats import Encoded
from dubito.model import Model
from dubito.policy import Policy, SanityCheck
from dubito.targets import known_rows

__all__: list[str] = []

#: images of each kind, at most
COUNT = 100
#: tiles along a side
TILES = 4


def checked(model: Model, samples: Source) -> Policy | None:
    """Return the policy of a model with what it accepts of each kind of image.

    Without images it is the same as before.

    Args:
        model: Model with a policy.
        samples: Labeled samples from which the images are made.
    """
    if model.policy is None or not shows_images(model):
        return model.policy
    found, task = {}, model.task
    for name, source in sources(model, samples).items():
        prediction = model.predict(source)
        assert prediction.accepted is not None
        wrong = accepted = prediction.accepted
        if source.target is not None and task.defines_errors:
            wrong = accepted & task.errors(prediction.point, task.encode(source.target))
        shares = (part.double().mean().item() for part in (accepted, wrong))
        found[name] = SanityCheck(**dict(zip(("accepted", "wrong"), shares, strict=True)))
    return model.policy.model_copy(update={"sanity": found})


def sources(model: Model, samples: Source) -> dict[str, Source]:
    """Return the images by kind; those that may show their class are labeled.

    Args:
        model: Model of images.
        samples: Labeled samples from which the images are made.
    """
    rows = known_rows(model.task.target(samples.target))
    chosen = samples.subset(rows[:: -(-len(rows) // COUNT)])
    return {
        name: Items(
            name, samples.format, inputs.numpy(),
            target=None if name in ("noise", "flat") else np.asarray(chosen.target),
            encoded=Encoded(inputs, {}, {}),
        )
        for name, inputs in images(chosen.load()).items()
    }  # fmt: skip


def shows_images(model: Model) -> bool:
    """Return whether the inputs of a model are images: (C, H, W), no indices.

    Args:
        model: Any model.
    """
    format = model.preprocessing.inputs
    return len(format.shape) == 3 and format.dtype != "int64"


def images(inputs: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Make images of others, by kind; the same for the same seed.

    Args:
        inputs: Encoded images, (N, C, H, W).
        seed: Seed of what is random.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = inputs.min(), inputs.max()
    count, channels, height, width = inputs.shape

    def drawn(*shape: int) -> Tensor:
        values = low + (high - low) * torch.rand(shape, generator=generator)
        return values if inputs.is_floating_point() else values.round().to(inputs.dtype)

    h, w = height // TILES, width // TILES  # what is left over stays in place
    inner = inputs[..., : TILES * h, : TILES * w]
    tiles = inner.reshape(count, channels, TILES, h, TILES, w).permute(0, 2, 4, 1, 3, 5)
    order = torch.rand(count, TILES**2, generator=generator).argsort(1)
    moved = tiles.flatten(1, 2)[torch.arange(count)[:, None], order].view_as(tiles)
    shuffled = inputs.clone()
    shuffled[..., : TILES * h, : TILES * w] = moved.permute(0, 3, 1, 4, 2, 5).reshape(inner.shape)
    return {
        "noise": drawn(*inputs.shape),
        "flat": drawn(count, channels, 1, 1).expand_as(inputs),
        "inverted": high - (inputs - low),
        "shuffled": shuffled,
    }
