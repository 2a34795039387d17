"""Size of batches that fit into memory."""

from math import prod

import torch

from dubito.data import Source

__all__: list[str] = []

#: Inputs of a batch: at most so many, and so many numbers, whose activations take 16 to 40 times
#: their memory in convolutional networks: about 1 GB.
MOST, VALUES = 1024, 1 << 23
#: A GPU has more memory, and needs more parallel work.
GPU = 4
#: Numbers that an embedded index, such as that of a token, counts as.
EMBEDDED = 1024


def batch_size(source: Source, device: torch.device) -> int:
    """Return how many inputs a network runs at once.

    A power of two, so that noise, which is drawn in groups of 16, depends on the seed alone.

    Args:
        source: Inputs.
        device: Device of the network.
    """
    format = source.format
    values = prod(format.shape) * (EMBEDDED if format.dtype == "int64" else 1)
    budget = VALUES * (GPU if device.type == "cuda" else 1)
    return min(MOST, 1 << max(1, budget // values).bit_length() - 1)
