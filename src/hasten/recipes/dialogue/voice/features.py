"""Turn sound into log-mel features, by resampling, a Fourier transform and a mel filterbank as batched tensor operations.

Everything runs on the CPU and on GPUs, in pieces of bounded size. A recording is cut into the same overlapping frames
however it arrives, so features of hours of sound read block by block equal those of the whole. Left out: dithering,
pre-emphasis, and removal of silence.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from hasten.core.errors import BrokenFileError, DataError
from hasten.data.cache.contract import MISSING, Cache
from hasten.data.cache.keys import key_of
from hasten.data.convert.reasons import reason_of
from hasten.data.sound import sound_blocks

RATES_HZ = (8_000, 48_000)
"""Lowest and highest sampling rate that are accepted, in Hz."""
_VERSION = 1
"""Part of the key of cached features: change it with the mathematics."""
_FRAMES = 256
"""Frames that are transformed at once, over all recordings of a batch: their spectra fit into a processor's cache."""
_OUTPUTS = 64
"""Fewest outputs of a frame in resampling: matrices with fewer columns are slow."""
_ZERO_CROSSINGS, _ROLLOFF, _BETA = 64, 0.9475937167399596, 14.769656459379492
"""The filter `kaiser_best` of the package resampy: half its length, its cut-off as a fraction of Nyquist, its window."""


@dataclass(frozen=True, kw_only=True)
class MelSettings:
    """Describe log-mel features. The defaults are usual for speech.

    Attributes:
        rate: Sampling rate that recordings are converted to, in Hz.
        window: Samples of a frame; also the length of the Fourier transform.
        hop: Samples from one frame to the next.
        num_mels: Number of mel bands.
        scale: `slaney` (linear to 1 kHz, then logarithmic; bands of equal area) or `htk` (bands of equal height).
        low_hz: Lower edge of the lowest band.
        high_hz: Upper edge of the highest band; None is half the rate.
        floor: Smallest power before the logarithm.

    Raises:
        DataError: A setting is out of range.
    """

    rate: int = 16_000
    window: int = 512
    hop: int = 160
    num_mels: int = 80
    scale: Literal["slaney", "htk"] = "slaney"
    low_hz: float = 0.0
    high_hz: float | None = None
    floor: float = 1e-10

    def __post_init__(self) -> None:
        high = self.rate / 2 if self.high_hz is None else self.high_hz
        checks = {
            f"rate {self.rate:,} Hz is not from {RATES_HZ[0]:,} to {RATES_HZ[1]:,}": _accepted(self.rate),
            f"window {self.window} is not even and above 0": self.window > 0 and self.window % 2 == 0,
            f"hop {self.hop} is not from 1 to the window, {self.window}": 1 <= self.hop <= self.window,
            f"num_mels {self.num_mels} is not above 0": self.num_mels > 0,
            f"scale {self.scale!r} is not 'slaney' or 'htk'": self.scale in {"slaney", "htk"},
            f"{self.low_hz:g} to {high:g} Hz is not within 0 to {self.rate / 2:g} Hz": 0
            <= self.low_hz
            < high
            <= self.rate / 2,
            f"floor {self.floor!r} is not above 0": 0 < self.floor < math.inf,
        }
        if wrong := [words for words, fits in checks.items() if not fits]:
            raise DataError(f"log-mel settings: {wrong[0]}.")


class _Frames:
    """Cut samples that arrive in pieces `[batch, samples]` into overlapping frames, and keep what the next frame needs."""

    def __init__(self, length: int, hop: int, before: int) -> None:
        self._length, self._hop, self._before = length, hop, before
        self._kept: torch.Tensor | None = None

    def add(self, samples: torch.Tensor) -> Iterator[torch.Tensor]:
        """Return samples of whole frames, `[batch, length + (frames - 1) * hop]`, in pieces of bounded size."""
        kept = samples.new_zeros(len(samples), self._before) if self._kept is None else self._kept
        kept = torch.cat((kept, samples), dim=1)
        most = max(1, _FRAMES // len(samples))
        while (frames := min(most, (kept.shape[1] - self._length) // self._hop + 1)) > 0:
            yield kept[:, : self._length + (frames - 1) * self._hop]
            kept = kept[:, frames * self._hop :]
        self._kept = kept.clone()


class LogMel:
    """Compute log-mel features of recordings that arrive in pieces: `add` each piece, then `finish`.

    A frame is centred on every `hop`-th sample, with zeros before the first sample and after the last one, as in
    `librosa.feature.melspectrogram(center=True, pad_mode="constant")`.

    Args:
        rate: Sampling rate of the pieces, in Hz.
        settings: The features.

    Raises:
        DataError: The rate is not supported.
    """

    def __init__(self, rate: int, settings: MelSettings) -> None:
        self._settings = settings
        self._resampler = Resampler(rate, settings.rate)
        self._frames = _Frames(settings.window, settings.hop, settings.window // 2)
        self._num_samples = 0
        self._end = torch.zeros(1, 0)

    def add(self, samples: torch.Tensor) -> list[torch.Tensor]:
        """Return the features that are complete now, `[batch, frames, mels]` each, from float32 `[batch, samples]`."""
        return self._of(self._resampler.add(samples))

    def finish(self) -> list[torch.Tensor]:
        """Return the remaining features.

        Raises:
            DataError: All samples together are fewer than a window.
        """
        last = self._of(self._resampler.finish())
        if self._num_samples < self._settings.window:
            seen, needed = self._num_samples, self._settings.window
            raise DataError(f"too short: {seen:,} samples at {self._settings.rate:,} Hz, but a window has {needed:,}")
        return last + [self._mel(piece) for piece in self._frames.add(self._end)]

    def _of(self, resampled: list[torch.Tensor]) -> list[torch.Tensor]:
        for samples in resampled:
            self._num_samples += samples.shape[1]
            self._end = samples.new_zeros(len(samples), self._settings.window // 2)
        return [self._mel(piece) for samples in resampled for piece in self._frames.add(samples)]

    def _mel(self, samples: torch.Tensor) -> torch.Tensor:
        window, bands = _constants(self._settings, samples.device)
        frames = samples.unfold(1, self._settings.window, self._settings.hop)
        parts = torch.view_as_real(torch.fft.rfft(frames * window)).flatten(2).square_()
        return ((parts[..., 0::2] + parts[..., 1::2]) @ bands).clamp_(min=self._settings.floor).log_()


class Resampler:
    """Change the sampling rate of recordings that arrive in pieces, by a windowed-sinc filter in polyphase form.

    Each output is a weighted sum of the inputs around it. The weights repeat after `new / gcd` outputs, so outputs are the
    product of overlapping frames and one matrix (Smith, Digital Audio Resampling, https://ccrma.stanford.edu/~jos/resample/).

    Args:
        old: Sampling rate of the input in Hz.
        new: Sampling rate of the output in Hz.

    Raises:
        DataError: A rate is not supported.
    """

    def __init__(self, old: int, new: int) -> None:
        for rate in (old, new):
            if not _accepted(rate):
                raise DataError(f"{rate:,} Hz is not supported: use recordings from {RATES_HZ[0]:,} to {RATES_HZ[1]:,} Hz.")
        common = math.gcd(old, new)
        repeats = -(-_OUTPUTS * common // new)
        self._old, self._new = repeats * old // common, repeats * new // common
        self._same = old == new
        self._half = math.ceil(_ZERO_CROSSINGS * max(self._old, self._new) / self._new / _ROLLOFF)
        self._frames = _Frames(2 * self._half + self._old, self._old, self._half)
        self._seen = self._made = 0
        self._end: torch.Tensor | None = None

    def add(self, samples: torch.Tensor) -> list[torch.Tensor]:
        """Return the outputs that are complete now, `[batch, samples]` each."""
        self._seen += samples.shape[1]
        self._end = samples[:, :0]
        return [samples] if self._same else self._of(samples)

    def finish(self) -> list[torch.Tensor]:
        """Return the remaining outputs: `ceil(seen * new / old)` in all."""
        if self._same or self._end is None:
            return []
        return self._of(self._end.new_zeros(len(self._end), self._half + self._old))

    def _of(self, samples: torch.Tensor) -> list[torch.Tensor]:
        kernel = _kernel(self._old, self._new, self._half, samples.device)
        total, results = -(-self._seen * self._new // self._old), list[torch.Tensor]()
        for piece in self._frames.add(samples):
            made = piece.unfold(1, 2 * self._half + self._old, self._old) @ kernel
            results.append(made.flatten(1)[:, : total - self._made])
            self._made += results[-1].shape[1]
        return results


def resample(samples: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """Change the sampling rate of recordings of equal length.

    Args:
        samples: Float32 `[batch, samples]`, on any device.
        old: Their rate in Hz.
        new: The rate of the result in Hz.

    Returns:
        Float32 `[batch, ceil(samples * new / old)]`.

    Raises:
        DataError: A rate is not supported, or the samples are empty or not finite.
    """
    _check(samples)
    resampler = Resampler(old, new)
    return torch.cat(resampler.add(samples) + resampler.finish(), dim=1)


def log_mel(samples: torch.Tensor, rate: int, settings: MelSettings | None = None) -> torch.Tensor:
    """Compute log-mel features of recordings of equal length, as natural logarithms of power.

    Args:
        samples: Float32 `[batch, samples]` in units of full scale, on any device.
        rate: Their rate in Hz.
        settings: The features; None is `MelSettings()`.

    Returns:
        Float32 `[batch, 1 + samples // hop, mels]`, with the number of samples after resampling.

    Raises:
        DataError: The rate is not supported, or the samples are too few or not finite.
    """
    _check(samples)
    stream = LogMel(rate, settings or MelSettings())
    return torch.cat(stream.add(samples) + stream.finish(), dim=1)


def log_mel_of_file(
    path: Path, settings: MelSettings | None = None, *, cache: Cache | None = None, device: str = "cpu"
) -> torch.Tensor:
    """Compute the features of a sound file, which is read in blocks.

    Args:
        path: A file with one channel, such as WAV or FLAC.
        settings: The features; None is `MelSettings()`.
        cache: Where features are kept, by the content of the file and the settings; None keeps nothing.
        device: Where they are computed.

    Returns:
        Float32 `[frames, mels]` on the CPU.

    Raises:
        BrokenFileError: The file is damaged, empty or too short, or has several channels or an unsupported rate.
        MachineError: The package soundfile is not installed.
    """
    settings = settings or MelSettings()
    if cache is None:
        return torch.cat(list(log_mel_pieces(path, settings, device=device)))
    with _named(path), path.open("rb") as file:
        key = key_of("log-mel", _VERSION, hashlib.file_digest(file, "sha256").digest(), asdict(settings))
    features = cache.get(key)
    if features is MISSING:
        features = torch.cat(list(log_mel_pieces(path, settings, device=device)))
        cache.put(key, features)
    return torch.as_tensor(features)


def log_mel_pieces(path: Path, settings: MelSettings | None = None, *, device: str = "cpu") -> Iterator[torch.Tensor]:
    """Compute the features of a sound file piece by piece, `[frames, mels]` each, in bounded memory.

    Arguments and errors are those of `log_mel_of_file`. Some errors are found only after the last piece.
    """
    stream: LogMel | None = None
    with _named(path), path.open("rb"):
        for rate, channels, block in sound_blocks(path):
            if channels != 1:
                raise DataError(f"it has {channels} channels: mix it down to one")
            stream = stream or LogMel(rate, settings or MelSettings())
            scale = 2.0**-15 if block.dtype == np.int16 else 1.0
            samples = torch.from_numpy(block).to(device, torch.float32).mul_(scale)[None]
            yield from (part[0].cpu() for part in stream.add(samples))
        if stream is not None:
            yield from (part[0].cpu() for part in stream.finish())


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise BrokenFileError(str(path), f": {error}") from error
    except (OSError, ValueError) as error:
        raise BrokenFileError(str(path), f": {reason_of(error)}") from error


def mel_bands(settings: MelSettings) -> torch.Tensor:
    """Return the weights of each frequency in each mel band: triangles, float32 `[window / 2 + 1, mels]`.

    Sources: Slaney, Auditory Toolbox (1998), with bands of equal area; Young et al., The HTK Book, with bands of height 1.
    """
    high = settings.rate / 2 if settings.high_hz is None else settings.high_hz
    start, end = (_mel(hz, settings.scale) for hz in (settings.low_hz, high))
    edges = _hertz(torch.linspace(start, end, settings.num_mels + 2, dtype=torch.float64), settings.scale)
    frequencies = torch.linspace(0, settings.rate / 2, settings.window // 2 + 1, dtype=torch.float64)[:, None]
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - left) / (middle - left), (right - frequencies) / (right - middle)
    bands = torch.minimum(rising, falling).clamp(min=0)
    if settings.scale == "slaney":
        bands *= 2 / (right - left)
    return bands.float()


_LINEAR_HZ, _BREAK_HZ, _LOG_STEP = 200 / 3, 1000.0, math.log(6.4) / 27
"""Slaney's scale: Hz per mel up to the break, and the natural logarithm of the frequency ratio per mel above it."""


def _mel(hz: float, scale: str) -> float:
    if scale == "htk":
        return 2595 * math.log10(1 + hz / 700)
    return hz / _LINEAR_HZ if hz < _BREAK_HZ else _BREAK_HZ / _LINEAR_HZ + math.log(hz / _BREAK_HZ) / _LOG_STEP


def _hertz(mel: torch.Tensor, scale: str) -> torch.Tensor:
    if scale == "htk":
        return 700 * (torch.exp(mel * (math.log(10) / 2595)) - 1)
    return torch.where(
        mel < _BREAK_HZ / _LINEAR_HZ,
        mel * _LINEAR_HZ,
        _BREAK_HZ * torch.exp((mel - _BREAK_HZ / _LINEAR_HZ) * _LOG_STEP),
    )


@lru_cache(maxsize=16)
def _constants(settings: MelSettings, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.hann_window(settings.window, device=device), mel_bands(settings).to(device)


@lru_cache(maxsize=16)
def _kernel(old: int, new: int, half: int, device: torch.device) -> torch.Tensor:
    """Return the filter of each output of a frame, `[2 * half + old, new]`: a sinc of the lower rate's cut-off, windowed."""
    cutoff = min(new / old, 1.0) * _ROLLOFF
    places = torch.arange(-half, half + old, dtype=torch.float64)
    offset = (places - torch.arange(new, dtype=torch.float64)[:, None] * old / new) * cutoff
    inside = (1 - (offset / _ZERO_CROSSINGS).square()).clamp(min=0).sqrt()
    window = torch.special.i0(_BETA * inside) / torch.special.i0(torch.tensor(_BETA, dtype=torch.float64))
    kernel: torch.Tensor = cutoff * torch.sinc(offset) * window * (offset.abs() <= _ZERO_CROSSINGS)
    return kernel.T.float().contiguous().to(device)


def _accepted(rate: int) -> bool:
    return RATES_HZ[0] <= rate <= RATES_HZ[1]


def _check(samples: torch.Tensor) -> None:
    if samples.ndim != 2 or samples.dtype != torch.float32 or not samples.numel():
        seen = f"{str(samples.dtype).removeprefix('torch.')} {list(samples.shape)}"
        raise DataError(f"samples must be float32 [batch, samples] and not empty, not {seen}.")
    if not all(end.isfinite() for end in samples.aminmax()):  # one pass; NaN is passed on
        raise DataError("some samples are not finite numbers.")
