"""Sounds in .wav files, as spectrograms."""

import io
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from dubito.formats import FORMATS, Encoded, InputFormat


@FORMATS.register("waves")
class WaveFormat(InputFormat):
    """Logarithmic spectrograms of 16-bit sounds: (1, bins, frames)."""

    extensions: ClassVar[tuple[str, ...]] = (".wav",)
    media_types: ClassVar[tuple[str, ...]] = ("audio/wav",)
    bins: int = 17
    """Frequencies."""
    frames: int
    """Steps in time."""
    loudest: float = 0.0
    """Largest value in the training data."""

    @classmethod
    def fit(cls, items: Any, rows: Sequence[int] | None = None) -> Self:
        format = cls(frames=1 + max(map(length, items)) // 16)
        inputs = format.encode([items[row] for row in rows or range(len(items))]).inputs
        return cls(frames=format.frames, loudest=inputs.max().item())

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, self.bins, self.frames)

    def encode(self, items: Any) -> Encoded:
        inputs, errors = torch.zeros(len(items), *self.shape), {}
        for row, item in enumerate(items):
            try:
                inputs[row, 0] = self.spectrogram(item)
            except (OSError, EOFError, wave.Error) as error:
                errors[row] = str(error) or "it is empty"
        return Encoded(inputs, errors, {})

    def spectrogram(self, item: str | Path | bytes) -> torch.Tensor:
        needed, samples = 16 * (self.frames - 1), torch.from_numpy(sound(item))
        samples = torch.nn.functional.pad(samples, (0, max(0, needed - len(samples))))[:needed]
        size = 2 * (self.bins - 1)
        window = torch.hann_window(size)
        spectrum = torch.stft(samples, size, 16, window=window, return_complex=True)
        return spectrum.abs().log1p()

    def in_range(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.flatten(1).amax(1) <= 2 * self.loudest


def length(item: str | Path | bytes) -> int:
    """Return the number of samples of a file; 0 if it cannot be read."""
    try:
        return len(sound(item))
    except (OSError, EOFError, wave.Error):
        return 0


def sound(item: str | Path | bytes) -> np.ndarray:
    """Read a .wav file of one channel with 16 bits, or its content."""
    with wave.open(io.BytesIO(item) if isinstance(item, bytes) else str(item)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 2**15
