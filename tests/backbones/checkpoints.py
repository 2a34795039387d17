"""Small checkpoints of transformers with random weights, and data for them."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

#: tokens of the tokenizer; the first four are special
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "a", "the", "film", "day", "very"]
CLASSES = ["ant", "bee", "cat", "dog", "eel"]
#: name -> class of the network, of its configuration and of its image processor
KINDS = {
    "vit": ("ViTForImageClassification", "ViTConfig", "ViT"),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", "ConvNext"),
    "mobilenet_v2": ("MobileNetV2ForImageClassification", "MobileNetV2Config", "MobileNetV2"),
    "bert": ("BertForSequenceClassification", "BertConfig", None),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", "DeiT"),
    "vit_encoder": ("ViTModel", "ViTConfig", "ViT"),
    "resnet_encoder": ("ResNetModel", "ResNetConfig", "ConvNext"),
    "bert_encoder": ("BertModel", "BertConfig", None),
    "bert_mlm": ("BertForMaskedLM", "BertConfig", None),
}
TRANSFORMER: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
#: options of each configuration
OPTIONS: dict[str, dict[str, Any]] = {
    "ViTConfig": {**TRANSFORMER, "image_size": 32, "patch_size": 8},
    "DeiTConfig": {**TRANSFORMER, "image_size": 32, "patch_size": 8},
    "ResNetConfig": {
        "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"
    },
    "MobileNetV2Config": {"depth_multiplier": 0.1, "classifier_dropout_prob": 0.2},
    "BertConfig": {**TRANSFORMER, "vocab_size": len(WORDS), "max_position_embeddings": 40},
}  # fmt: skip
#: options of each image processor
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"size": {"height": 32, "width": 32}},
    "ConvNext": {"size": {"shortest_edge": 32}},
    "MobileNetV2": {
        "size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}
    },
    "DeiT": {"size": {"height": 36, "width": 36}, "crop_size": {"height": 32, "width": 32}},
}  # fmt: skip


def save(name: str, folder: Path, classes: Sequence[str] = CLASSES, **options: Any) -> Path:
    """Save a checkpoint of one of KINDS.

    Args:
        name: Name of the kind.
        folder: Folder to write.
        classes: Names of the classes.
        **options: Options of the network.
    """
    import transformers

    transformers.logging.disable_progress_bar()
    network, config, processor = KINDS[name]
    settings = {**OPTIONS[config], "id2label": dict(enumerate(classes))}
    torch.manual_seed(0)
    built = getattr(transformers, network)(getattr(transformers, config)(**settings), **options)
    built.save_pretrained(folder)
    if processor is None:
        tokenizer().save_pretrained(folder)
    else:
        image_processor(processor, **PROCESSORS[processor]).save_pretrained(folder)
    return folder


def image_processor(name: str, **options: Any) -> Any:
    """Return an image processor of transformers that uses Pillow."""
    from transformers.models.auto.image_processing_auto import get_image_processor_class_from_name

    return get_image_processor_class_from_name(f"{name}ImageProcessorPil")(**options)


def tokenizer() -> Any:
    """Return a tokenizer of transformers with a few words."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(WORDS)}
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    built.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = dict(zip(("pad", "unk", "cls", "sep"), WORDS, strict=False))
    names = {f"{name}_token": word for name, word in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=built, model_max_length=40, **names)


def write_photos(folder: Path, count: int = 20) -> Path:
    """Write images of noise around two colors, of several shapes."""
    draw = np.random.default_rng(0)
    for name, color in (("red", (200, 60, 60)), ("blue", (60, 60, 200))):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            noise = draw.normal(0, 40, (*draw.integers(30, 70, 2), 3))
            pixels = np.clip(np.array(color) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def write_reviews(path: Path, count: int = 40) -> Path:
    """Write a table of texts whose last word is their class."""
    draw = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "review", "verdict"])
        for number in range(count):
            label = ("good", "bad")[number % 2]
            words = draw.choice(WORDS[6:], draw.integers(1, 9)).tolist()
            writer.writerow([number, " ".join([*words, label]), label])
    return path
