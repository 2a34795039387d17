"""A small ViT, trained by the Trainer of transformers with the loss of I-EDL, learns to abstain.

The Trainer gets the loss from dubito and nothing else. Its checkpoint becomes a `Model`, which is
calibrated on digits that the network has not seen, saved, loaded, and tried on test digits and on
noise. Run it with

    python examples/trainer.py [--epochs 20] [--out trainer]

which prints accuracy and decisions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

import dubito
from dubito import data
from dubito.backbones import BACKBONES
from dubito.model import Model
from dubito.tasks import Classification

SIDE, METHOD, FOREIGN, ERROR_RATE = 8, "iedl", "mahalanobis", 0.05
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"hidden_size": 48, "intermediate_size": 96}


def train(source: data.Source, epochs: int, folder: Path) -> None:
    """Train a ViT, and save its checkpoint."""
    torch.manual_seed(0)
    task = Classification.from_target(source.target)
    names = dict(enumerate(task.classes))
    network = ViTForImageClassification(
        ViTConfig(image_size=SIDE, patch_size=2, id2label=names, **SMALL)
    )
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    pixels = processor(list(source.load().numpy()), return_tensors="pt")["pixel_values"]
    pairs = zip(pixels, task.encode(source.target), strict=True)
    criterion = dubito.transformers.loss(METHOD)
    arguments = TrainingArguments(
        str(folder / "trainer"), num_train_epochs=epochs, learning_rate=2e-3, use_cpu=True,
        per_device_train_batch_size=64, save_strategy="no", report_to="none", disable_tqdm=True,
        dataloader_pin_memory=False, logging_strategy="no",
    )  # fmt: skip
    Trainer(
        network, arguments, compute_loss_func=criterion, callbacks=[criterion],
        train_dataset=[{"pixel_values": x, "labels": y} for x, y in pairs],
    ).train()  # fmt: skip
    network.save_pretrained(folder)
    processor.save_pretrained(folder)


def to_model(folder: Path, source: data.Source, held_out: data.Source) -> Model:
    """Make a model of a checkpoint, calibrated on samples that the network has not seen.

    Foreign inputs are told by the distance of their features from those of the training.
    """
    backbone = BACKBONES.build(f"hf:{folder}")
    inputs, classifier = backbone.inputs(), backbone.classifier()
    assert inputs is not None
    assert classifier is not None
    layer, names = classifier
    task = Classification(classes=names or ())
    model = Model.build(METHOD, task, inputs, backbone, pretrained=True)
    model.network.get_submodule("head").load_state_dict(layer.state_dict())
    model.eval().add_scores([FOREIGN], source).calibrate(held_out)
    return model.fit_policy(held_out, error_rate=ERROR_RATE, ood_score=FOREIGN)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, convert, save, load and try a network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("trainer"))
    options = parser.parse_args(argv)
    digits, test = (data.open("digits", part, mode="RGB") for part in ("train", "test"))
    source, held_out = data.split(digits, 0.75, seed=0)
    train(source, options.epochs, options.out / "checkpoint")
    to_model(options.out / "checkpoint", source, held_out).save(options.out / "model")

    model = dubito.load(options.out / "model")
    result = model.evaluate(test)
    noise = np.random.default_rng(0).integers(256, size=(300, 3, SIDE, SIDE), dtype=np.uint8)
    print(f"accuracy     {result['metrics']['accuracy']:6.1%}")
    print(f"answered     {result['policy']['accepted']:6.1%}")
    print(f"wrong        {result['policy']['error_rate']:6.1%} of these; promised {ERROR_RATE:.0%}")
    print(f"noise        {model.predict(noise).accepted.double().mean():6.1%} answered")


if __name__ == "__main__":
    main()
