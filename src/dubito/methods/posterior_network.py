r"""Posterior Networks: evidence is a class's latent density (Charpentier et al., NeurIPS 2020).

.. math::
    \alpha_c = 1 + N_c\,q(z|c), \quad L = E[-\ln p_y] - \lambda H[\mathrm{Dir}(\alpha)]

with z the batch-normed latent point, q(z|c) a radial flow a class, and N_c the class's budget: how
many training samples it has. The published loss is the batch's sum, which Adam does not notice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dubito import _checks
from dubito.evidence import alpha_from_logits
from dubito.losses import terms
from dubito.methods.base import Counts, Method
from dubito.methods.flows import RadialFlows
from dubito.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class PosteriorNetwork(Method):
    """The Posterior Network. The paper's `entropy_weight`: 1e-6 for MNIST, 1e-5 for CIFAR-10.

    The model's outputs are the log evidence ln N_c + ln q(z|c), for the evidence function "exp". A
    density has no bound and float32 ends at e^88, so evidence is held at e^60, some 10^26 samples
    (`dubito.evidence.EXP_BOUND`); a point denser than that gets no gradient to be denser still.

    Latents must not move faster than batch norm's averages follow, or a model that has learnt fails
    in evaluation. With the convnet's published start, whose features hardly vary, keep to the
    paper's learning rate of 1e-4; with its `init="he"` 1e-3 does as well.

    >>> PosteriorNetwork().outputs(classes=10)
    6
    """

    latent_dim: int = 6
    flow_length: int = 6
    entropy_weight: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("latent_dim", "flow_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        _checks.non_negative(self.entropy_weight, "entropy_weight")

    def outputs(self, classes: int) -> int:
        """The latent dimension."""
        return self.latent_dim

    def model(
        self, backbone: nn.Module, classes: int, class_counts: Counts | None = None
    ) -> nn.Module:
        """The backbone and the densities; `class_counts` are the training samples of each class."""
        counts = _counted(class_counts, classes)
        return PosteriorModel(
            backbone, RadialFlows(classes, self.latent_dim, self.flow_length), counts
        )

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term; the entropy is to be large."""
        return {"expected_cross_entropy": 1.0, "differential_entropy": -self.entropy_weight}

    def terms_of(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """UCE and the entropy of the Dirichlet: {name: (..., N)}."""
        return terms(tuple(self.weights(0, 1)), alpha_from_logits(outputs, "exp"), target)

    def prediction(self, outputs: Tensor) -> Prediction:
        """Dir(1 + N_c q(z|c))."""
        return Prediction.from_logits(outputs, "exp")


class PosteriorModel(nn.Module):
    """From inputs to log evidence: (N, *shape) -> (N, K)."""

    log_counts: Tensor

    def __init__(self, backbone: nn.Module, flows: RadialFlows, counts: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.norm = nn.BatchNorm1d(flows.centre.shape[-1])
        self.flows = flows
        # saved with the weights: without its budgets a model would say something else
        self.register_buffer("log_counts", counts.log())

    def forward(self, x: Tensor) -> Tensor:
        """ln N_c + ln q(z|c): (N, *shape) -> (N, K)."""
        latent: Tensor = self.backbone(x)
        # densities multiply many factors: half precision ends before them
        latent = latent.to(self.log_counts.dtype)
        # one sample, say the last of an epoch, has no spread of its own
        alone = self.training and len(latent) == 1
        latent = self._normed_as_before(latent) if alone else self.norm(latent)
        log_density: Tensor = self.flows(latent)
        return log_density + self.log_counts

    def _normed_as_before(self, latent: Tensor) -> Tensor:
        norm = self.norm
        return functional.batch_norm(
            latent, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
        )


def _counted(class_counts: Counts | None, classes: int) -> Tensor:
    if class_counts is None:
        raise ValueError(
            "a Posterior Network needs class_counts, the number of training samples of each class"
        )
    counts = torch.as_tensor(class_counts, dtype=torch.get_default_dtype())
    if counts.shape != (classes,):
        raise ValueError(
            f"class_counts has shape {tuple(counts.shape)}; expected one a class, ({classes},)"
        )
    if not bool((counts >= 1).all()):
        empty = (counts < 1).nonzero().flatten().tolist()
        raise ValueError(f"class_counts must be at least 1, but is not for the classes {empty}")
    return counts
