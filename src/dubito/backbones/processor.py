"""What a checkpoint of transformers does to its inputs, as a `Preprocessing`."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dubito._extras import need
from dubito.errors import DubitoError, reason
from dubito.formats import ImageFormat, Preprocessing, Resize
from dubito.formats.images import mode_of
from dubito.formats.text import MOST_TOKENS
from dubito.formats.tokens import TokensFormat
from dubito.types import Array

__all__: list[str] = []

#: files with the settings of an image processor
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
#: files with the tokens of a tokenizer
TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model")
#: height and width of images that show how a processor resizes
SHAPES = ((330, 470), (480, 301))
#: share of a side that processors keep unless they say otherwise
USUAL_PCT = 224 / 256
#: levels of 255 by which pixels may differ: by rounding; on average, with a warning
ROUNDING, CLOSE = 1.0, 8.0
#: digits of a mean or deviation, computed in float32
DIGITS = 6


def image_inputs(folder: Path, channels: int) -> Preprocessing | None:
    """Return what the image processor of a checkpoint does, measured on a few images.

    Args:
        folder: Folder of the checkpoint.
        channels: Channels of the network's inputs.
    """
    if not any((folder / name).exists() for name in PROCESSORS):
        warnings.warn(
            f"{folder} has no {PROCESSORS[0]}: size, mean and deviation of its images are unknown, "
            "and those of the data are used",
            stacklevel=2,
        )
        return None
    mode = mode_of(channels)
    processor = _Processor(folder, mode)
    size, mean, std = processor.size(), *processor.normalization()
    pictures = [_picture(shape, mode) for shape in SHAPES]
    wanted = [255 * (processor(one) * std + mean) for one in pictures]
    gaps = {}
    for resize in processor.resizes(size):
        own = [np.asarray(resize(one, size), np.float64) for one in pictures]
        own = [one.reshape(*size, -1).transpose(2, 0, 1) for one in own]
        gaps[resize] = max(
            (abs(a - b).max(), abs(a - b).mean()) for a, b in zip(own, wanted, strict=True)
        )
    best = min(gaps, key=lambda resize: gaps[resize])
    most, average = gaps[best]
    text = (
        f"the image processor of {folder} resizes in a way of its own: pixels differ by up to "
        f"{most:.0f} of 255, {average:.2g} on average"
    )
    if average > CLOSE:
        raise DubitoError(text)
    if most > ROUNDING:
        warnings.warn(text, stacklevel=2)
    format = ImageFormat(size=size, mode=mode, resize=best)
    rounded = (tuple(np.round(part.flatten(), DIGITS).tolist()) for part in (mean, std))
    return Preprocessing(**dict(zip(("mean", "std"), rounded, strict=True)), inputs=format)


class _Processor:
    """An image processor of transformers, from a Pillow image to normalized pixels (C, H, W)."""

    def __init__(self, folder: Path, mode: str) -> None:
        auto, self.folder, self.mode = need("transformers", "transformers"), folder, mode
        need("PIL.Image", "data")
        try:
            self.processor = auto.AutoImageProcessor.from_pretrained(
                folder, backend="pil", local_files_only=True
            )
        except Exception as error:  # of any kind
            raise DubitoError(
                f"cannot read the image processor of {folder}: {reason(error)}"
            ) from error

    def __call__(self, image: Any) -> Array:
        return np.asarray(self.processor(image, return_tensors="np")["pixel_values"][0], np.float64)

    def size(self) -> tuple[int, int]:
        """Return height and width of the results."""
        shapes = {self(_picture(shape, self.mode)).shape for shape in SHAPES}
        sizes = {shape[1:] for shape in shapes if len(shape) == 3}
        if len(shapes) > 1 or not sizes:
            raise DubitoError(
                f"the image processor of {self.folder} returns images of several shapes, "
                f"{sorted(shapes)}: give it a crop_size"
            )
        height, width = sizes.pop()
        return height, width

    def normalization(self) -> tuple[Array, Array]:
        """Return mean and deviation of each channel, (C, 1, 1), for pixels from 0 to 1."""
        image = need("PIL.Image", "data")
        colors = ("black", "white", "red")
        values = [self(image.new(self.mode, (64, 48), color)) for color in colors]
        black, white, red = (value[:, value.shape[1] // 2, value.shape[2] // 2] for value in values)
        if self.mode == "RGB" and not np.allclose(red, [white[0], *black[1:]], atol=1e-4):
            raise DubitoError(
                f"the image processor of {self.folder} does not keep the order red, green, blue, "
                "as dubito does"
            )
        std = 1 / (white - black)
        return (-black * std)[:, None, None], std[:, None, None]

    def resizes(self, size: tuple[int, int]) -> Iterator[Resize]:
        """Yield ways to resize that the processor may mean."""
        own = self.processor
        filters = need("PIL.Image", "data").Resampling
        name = filters(filters.BILINEAR if own.resample is None else own.resample).name.lower()
        sides = (own.size.get(key) for key in ("shortest_edge", "height"))
        shares = [size[0] / side for side in sides if side]
        for share in dict.fromkeys([1.0, *shares, getattr(own, "crop_pct", None), USUAL_PCT]):
            if share is not None and 0 < share <= 1:
                yield Resize(fit="stretch", crop_pct=share, interpolation=name)
                yield Resize(fit="crop", crop_pct=share, interpolation=name)


def _picture(shape: tuple[int, int], mode: str) -> Any:
    """Return a smooth image of random colors."""
    image = need("PIL.Image", "data")
    colors = np.random.default_rng(0).integers(256, size=(7, 9, 3), dtype=np.uint8)
    return image.fromarray(colors).resize(shape[::-1], image.Resampling.BICUBIC).convert(mode)


def text_inputs(folder: Path, vocabulary: int | None) -> tuple[Preprocessing, int]:
    """Return the tokenizer of a checkpoint, and the token that fills up short texts.

    Args:
        folder: Folder of the checkpoint.
        vocabulary: Number of tokens that the network knows.
    """
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        raise DubitoError(f"{folder} has no {TOKENIZERS[0]}: save the tokenizer there, too")
    try:
        own = need("transformers", "transformers").AutoTokenizer.from_pretrained(
            folder, local_files_only=True
        )
        tokenizer = own.backend_tokenizer
    except Exception as error:  # of any kind
        raise DubitoError(f"{folder} has no tokenizer that can be read: {reason(error)}") from error
    if vocabulary is not None and tokenizer.get_vocab_size() > vocabulary:
        raise DubitoError(
            f"{folder} has the tokenizer of another network: {tokenizer.get_vocab_size()} tokens, "
            f"but the network knows {vocabulary}"
        )
    padding = next(id for id in (own.pad_token_id, own.eos_token_id, 0) if id is not None)
    length = min(own.model_max_length, MOST_TOKENS)
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(pad_id=padding, length=length)
    content = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)
    format = TokensFormat(tokenizer=content, length=length, padding=padding)
    return Preprocessing(inputs=format), padding
