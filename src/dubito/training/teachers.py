"""Teachers: trained models whose predictions are the targets of another."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dubito.errors import DubitoError
from dubito.model import Model
from dubito.model.folder import seed_folders

__all__: list[str] = []


class Teachers:
    """Log probabilities that trained models predict.

    Args:
        folders: Folders of models, or of the models of several seeds.
        student: Model in training, of the same classes and preprocessing.
        device: Device of the training.
    """

    def __init__(self, folders: Sequence[str], student: Model, device: torch.device) -> None:
        self.models: list[Model] = []
        for folder in (each for name in folders for each in seed_folders(Path(name))):
            model = Model.load(folder, device=device)
            for what, own, theirs in (
                ("classes", student.task.names, model.task.names),
                ("preprocessing", student.preprocessing, model.preprocessing),
            ):
                if own != theirs:
                    raise DubitoError(
                        f"the teacher {folder} has other {what} than its student: train both on "
                        "the same data, divided in the same way"
                    )
            self.models.append(model)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return the log probabilities of S teachers or members: (N, S, K).

        Args:
            x: Normalized inputs, (N, *shape).
        """
        logs = []
        for model in self.models:
            dist: Any = model.method.distribution(model.network(x))
            parts = getattr(dist, "members", dist).log_probs
            logs.append(parts.reshape(len(x), -1, parts.shape[-1]))
        return torch.cat(logs, 1)
