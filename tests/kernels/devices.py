"""Where the Triton kernels run: on a GPU, or interpreted on a CPU."""

import pytest
import torch

from dubito.kernels import triton_math

DEVICE = "cuda" if triton_math.COMPILED.value else "cpu"
#: marks of tests on DEVICE
ON_DEVICE = [
    pytest.mark.usefixtures("_fast_interpreter", "_on_device"),
    # numpy warns where an unused lane overflows
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="neither a GPU nor interpreted"
    ),
]
