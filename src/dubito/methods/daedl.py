r"""DAEDL: evidence scaled by the density of the features (Yoon and Kim, ICML 2024).

.. math::
    L = \sum_j \left[(y_j - p_j)^2 + \tfrac{p_j(1 - p_j)}{\alpha_0 + 1}\right]
        + \lambda\,\mathrm{KL}(\mathrm{Dir}(\tilde\alpha)\,\|\,\mathrm{Dir}(1)), \quad
    \alpha = e^z + 10^{-6}

with alpha~ = alpha (1 - y) + y. After training alpha = exp(s z), with s the log density of the
features under one normal distribution per class, scaled so that it goes from 0 to 1 over the
training samples. https://openreview.net/forum?id=JtkruFHcRK
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dubito import _checks, losses
from dubito.distributions import Dirichlet
from dubito.errors import DubitoError
from dubito.losses import Term
from dubito.methods.base import METHODS, Batches, Method, NonNegative, TaskLike
from dubito.numerics.covariance import shrunk
from dubito.targets import known_rows, values_and_weight

__all__: list[str] = []

#: alpha without evidence in training
LOG_LEAST = math.log(1e-6)
#: share of the mean variance that is added to each variance, since features may be constant
RIDGE = 1e-6


@METHODS.register("daedl")
class DAEDL(Method):
    """DAEDL.

    Unlike the published code, covariances are shrunk where samples are few, and the density is
    fitted to images that are not augmented.
    """

    ood_score: ClassVar[str] = "alpha0"

    kl_weight: NonNegative = 0.05
    """Weight lambda of the KL term."""
    spectral_norm: bool = True
    """Spectral normalization of backbones that are built for this method, if not pretrained."""

    def head(self, in_features: int, task: TaskLike) -> nn.Module:
        """Build a linear layer with a density of its inputs."""
        return DensityScaled(in_features, task.size)

    def finish(self, network: nn.Module, batches: Batches) -> None:
        """Fit the density to the training samples."""
        (head,) = (part for part in network.modules() if isinstance(part, DensityScaled))
        seen: list[Tensor] = []
        hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        labels = []
        with torch.no_grad():
            for x, target in batches:
                network(x)
                rows, (values, _) = known_rows(target), values_and_weight(target)
                seen[-1] = seen[-1][rows]
                labels.append((values.argmax(-1) if values.ndim > 1 else values)[rows])
            hook.remove()
            head.fit(torch.cat(seen), torch.cat(labels))

    def distribution(self, outputs: Tensor) -> Dirichlet:
        """Dir(exp(outputs))."""
        return Dirichlet.from_logits(outputs, "exp", prior=0.0)

    @property
    def terms(self) -> Mapping[str, Term]:
        """The expected squared error and the KL term."""
        error = losses.named(losses.mse_bias, losses.mse_variance)
        return {**error, "wrong_evidence_kl": wrong_evidence_kl}

    def weights(self, epoch: int, epochs: int) -> dict[str, float]:
        """The weight of each term."""
        return {"mse_bias": 1.0, "mse_variance": 1.0, "wrong_evidence_kl": self.kl_weight}


def wrong_evidence_kl(dist: Dirichlet, target: Tensor) -> Tensor:
    """KL divergence to Dir(1), with 1 in place of the concentration of the target: (...).

    Args:
        dist: Dirichlet, batch shape (...).
        target: Class indices (...) or probabilities (..., K).
    """
    y = dist.one_hot(target)
    others = Dirichlet(dist.alpha * (1 - y) + y, prior=0.0)
    return losses.reverse_kl(1.0)(others, target)


class DensityScaled(nn.Module):
    """Linear layer whose outputs are scaled by the density of its inputs: (N, D) -> (N, K).

    The density counts in evaluation, once it is fitted; until then its buffers are empty.

    Args:
        in_features: Number of features D.
        num_classes: Number of classes K.
    """

    means: Tensor
    whitening: Tensor
    log_scale: Tensor
    bounds: Tensor

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes)
        for name in ("means", "whitening", "log_scale", "bounds"):
            self.register_buffer(name, torch.empty(0))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logarithms of alpha."""
        z = _checks.at_least_float32(self.linear(features))
        if self.training or not len(self.bounds):
            return torch.logaddexp(z, torch.full_like(z, LOG_LEAST))
        low, high = self.bounds.unbind()
        share = (self.log_density(features) - low) / (high - low)
        return z * share.clamp(0, 1).unsqueeze(-1)

    def log_density(self, features: Tensor) -> Tensor:
        """Return the logarithm of the summed densities of the classes, up to a constant: (N,).

        Args:
            features: Features, (N, D).
        """
        rest = features.to(self.means.dtype) - self.means.unsqueeze(1)
        distance = (rest @ self.whitening).square().sum(-1)
        return (self.log_scale.unsqueeze(-1) - distance / 2).logsumexp(0)

    def fit(self, features: Tensor, labels: Tensor) -> None:
        """Fit a normal distribution to each class, in float64.

        Args:
            features: Features of the training samples, (N, D).
            labels: Their classes, (N,).
        """
        parts = [features[labels == label] for label in range(self.linear.out_features)]
        normals = [normal(part.double()) for part in parts if len(part) > 1]
        if not normals:
            raise DubitoError("a density needs two training samples of a class, but none has them")
        means, whitening, log_scale = (
            torch.stack(part).float() for part in zip(*normals, strict=True)
        )
        self.register_buffer("means", means)
        self.register_buffer("whitening", whitening)
        self.register_buffer("log_scale", log_scale)
        logs = torch.cat([self.log_density(rows) for rows in features.split(1024)])
        self.register_buffer("bounds", torch.stack(logs.aminmax()))

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any
    ) -> None:
        for name, own in [*self.named_buffers(recurse=False)]:
            if (saved := state_dict.get(prefix + name)) is not None:
                self.register_buffer(name, torch.empty_like(saved, device=own.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


def normal(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (D,), whitening (D, D) and logarithm of the scale of a normal distribution.

    Args:
        x: Samples, (N, D), float64.
    """
    mean = x.mean(0)
    rest = x - mean
    covariance = shrunk(rest.mT @ rest / len(x), rest.square().sum(1).square().mean(), len(x))
    ridge = RIDGE * covariance.trace() / len(mean)
    if not ridge > 0:
        raise DubitoError("the features of a class do not vary, or are not finite: lower lr")
    identity = torch.eye(len(mean)).to(covariance)
    factor = torch.linalg.cholesky(covariance + ridge * identity)
    whitening = torch.linalg.solve_triangular(factor, identity, upper=False).mT
    return mean, whitening, -factor.diagonal().log().sum()
