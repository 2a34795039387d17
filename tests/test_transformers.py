"""Training in the Trainer of transformers, compared with a plain loop."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito import IEDLLoss
from dubito.errors import DubitoError

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

EPOCHS, LR = 3, 0.1
#: ten samples in parts of four, four and two
SAMPLES, PART, FEATURES, CLASSES = 10, 4, 6, 3
#: the loss of dubito replaces it, and says so
SMOOTHING = {"label_smoothing_factor": 0.3}
Samples = list[dict[str, Tensor]]


class Network(nn.Module):
    """A network that returns logits by name, as those of transformers do."""

    config = None  # the Trainer looks for it

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(x)}


class Stream(torch.utils.data.IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter([])


@pytest.fixture
def samples() -> Samples:
    """Return samples, one of which does not count."""
    x, labels = torch.randn(SAMPLES, FEATURES), torch.arange(SAMPLES) % CLASSES
    labels[3] = -100
    return [{"x": row, "labels": label} for row, label in zip(x, labels, strict=True)]


def trainer(network: nn.Module, samples: Any, folder: Path, criterion: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "num_train_epochs": EPOCHS, "per_device_train_batch_size": PART, "max_grad_norm": 0,
        "per_device_eval_batch_size": SAMPLES,
        "gradient_accumulation_steps": 3, "learning_rate": LR, "lr_scheduler_type": "constant",
        "optim": "sgd", "save_strategy": "no", "report_to": "none", "use_cpu": True,
        "dataloader_pin_memory": False, "label_names": ["labels"], "disable_tqdm": True,
        "logging_strategy": "no",
    }  # fmt: skip
    callbacks = options.pop("callbacks", [criterion])
    return transformers.Trainer(
        network, transformers.TrainingArguments(str(folder), **(settings | options)),
        train_dataset=samples, eval_dataset=samples, compute_loss_func=criterion,
        callbacks=callbacks,
    )  # fmt: skip


def test_accumulated_steps_equal_a_plain_loop(samples: Samples, tmp_path: Path) -> None:
    x, labels = (torch.stack([sample[name] for sample in samples]) for name in ("x", "labels"))
    plain, network = Network(), Network()
    reference, optimizer = IEDLLoss(kl_ramp=2), torch.optim.SGD(plain.parameters(), LR)
    for epoch in range(EPOCHS):
        reference.set_epoch(epoch)
        optimizer.zero_grad()
        reference(plain.layer(x), labels).backward()
        optimizer.step()
    criterion = dubito.transformers.loss("iedl", kl_ramp=2)
    built = trainer(network, samples, tmp_path, criterion, **SMOOTHING)
    with pytest.warns(UserWarning, match=r"label_smoothing_factor=0\.3 has no effect"):
        built.train()
    torch.testing.assert_close(network.layer.weight, plain.layer.weight)
    with torch.no_grad():  # with the final weight of the KL term
        expected = IEDLLoss()(plain.layer(x), labels).item()
    assert built.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_resumed_training_continues_at_its_epoch(samples: Samples, tmp_path: Path) -> None:
    whole, resumed = Network(), Network()
    for network, place in ((whole, None), (resumed, str(tmp_path / "checkpoint-1"))):
        criterion = dubito.transformers.loss("iedl", kl_ramp="all")
        built = trainer(network, samples, tmp_path, criterion, save_strategy="epoch")
        built.train(resume_from_checkpoint=place)
    torch.testing.assert_close(resumed.layer.weight, whole.layer.weight)


def test_rising_weights_need_the_callback(samples: Samples, tmp_path: Path) -> None:
    built = trainer(Network(), samples, tmp_path, dubito.transformers.loss("iedl"), callbacks=[])
    with pytest.raises(DubitoError, match="pass it to the Trainer in callbacks, too"):
        built.train()
    constant = dubito.transformers.loss("edl", kl_ramp=0)
    trainer(Network(), samples, tmp_path, constant, callbacks=[]).train()
    criterion = dubito.transformers.loss("redl")
    built = trainer(Network(), Stream(), tmp_path, criterion, max_steps=2)
    with pytest.raises(DubitoError, match="which endless data lacks: pass kl_ramp=0"):
        built.train()


@pytest.mark.parametrize("method", ["fedl", "posterior_network", "ensemble", "der"])
def test_methods_with_their_own_head(method: str) -> None:
    with pytest.raises(DubitoError, match=f"'{method}' needs a head of its own: train it with"):
        dubito.transformers.loss(method)


def test_bad_input() -> None:
    with pytest.raises(DubitoError, match="also has a loss of out-of-distribution inputs"):
        dubito.transformers.loss("kl_pn")
    with pytest.raises(DubitoError, match="unknown method 'nonsense'"):
        dubito.transformers.loss("nonsense")
    with pytest.raises(DubitoError, match="the batches have no 'labels'"):
        dubito.transformers.loss("softmax")({"logits": torch.zeros(1, 3)}, None)
