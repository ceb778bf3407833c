"""Log-mel features equal librosa's, do not depend on how sound is cut, and name the file that cannot be used."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from hasten.core.errors import BrokenFileError, DataError
from hasten.data.cache.memory import MemoryCache
from hasten.data.sound import sound_blocks
from hasten.recipes.dialogue.voice.features import (
    LogMel,
    MelSettings,
    Resampler,
    log_mel,
    log_mel_of_file,
    log_mel_pieces,
    mel_bands,
    resample,
)

librosa: Any = import_module("librosa")  # its types are incomplete


def tone(hz: float, rate: int, seconds: float) -> torch.Tensor:
    """Return a sine of amplitude 0.5, `[1, samples]`."""
    return 0.5 * torch.sin(2 * math.pi * hz * torch.arange(round(rate * seconds), dtype=torch.float64) / rate).float()[None]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", ["slaney", "htk"])
@pytest.mark.parametrize(("rate", "window", "mels"), [(16_000, 512, 80), (8_000, 256, 40), (22_050, 1024, 64)])
def test_bands_and_features_equal_librosa(scale: Any, rate: int, window: int, mels: int) -> None:
    settings = MelSettings(rate=rate, window=window, hop=window // 4, num_mels=mels, scale=scale, low_hz=20)
    kind = {"htk": scale == "htk", "norm": None if scale == "htk" else "slaney"}
    bands = librosa.filters.mel(sr=rate, n_fft=window, n_mels=mels, fmin=20, **kind)
    np.testing.assert_allclose(mel_bands(settings).numpy().T, bands, atol=1e-6 * bands.max())
    sound = noise(2, rate) + tone(700, rate, 1.0)
    power = librosa.feature.melspectrogram(
        y=sound.numpy(), sr=rate, n_fft=window, hop_length=window // 4, n_mels=mels, fmin=20, pad_mode="constant", **kind
    )
    expected = np.log(np.maximum(power, 1e-10)).transpose(0, 2, 1)
    np.testing.assert_allclose(log_mel(sound, rate, settings).numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("hz", [250.0, 1000.0, 3000.0])
@pytest.mark.parametrize("scale", ["slaney", "htk"])
def test_a_sine_peaks_in_the_band_of_its_frequency(hz: float, scale: Any) -> None:
    settings = MelSettings(scale=scale, window=1024, num_mels=40)
    edges = librosa.mel_frequencies(n_mels=42, fmax=8000, htk=scale == "htk")
    peak = int(log_mel(tone(hz, 16_000, 0.5), 16_000, settings)[0, 10:-10].mean(dim=0).argmax())
    assert edges[peak] < hz < edges[peak + 2]


@pytest.mark.parametrize(("old", "new"), [(8_000, 16_000), (48_000, 16_000), (44_100, 16_000), (11_025, 8_000)])
def test_resampling_equals_librosa(old: int, new: int) -> None:
    sound = tone(440, old, 1.0) + tone(2_900, old, 1.0)
    ours = resample(sound, old, new)[0].numpy()
    theirs = librosa.resample(sound[0].numpy(), orig_sr=old, target_sr=new, res_type="soxr_vhq")
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours[500:-500], theirs[500:-500], atol=2e-4)  # the ends differ in how they fade
    exact = (tone(440, new, 1.0) + tone(2_900, new, 1.0))[0].numpy()
    np.testing.assert_allclose(ours[500:-500], exact[500:-500], atol=2e-5)


def test_resampling_removes_what_the_new_rate_cannot_hold() -> None:
    assert resample(tone(6_000, 16_000, 1.0), 16_000, 8_000)[:, 500:-500].abs().max() < 1e-4


@pytest.mark.parametrize("pieces", [[1, 7, 399, 2_000], [5_000], [16_000, 16_000], [100_000]])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_features_do_not_depend_on_how_sound_is_cut(pieces: list[int], rate: int) -> None:
    sound, settings = noise(2, 2 * rate + 77), MelSettings()
    stream, parts, done = LogMel(rate, settings), list[torch.Tensor](), 0
    while done < sound.shape[1]:
        for size in pieces:
            parts += stream.add(sound[:, done : done + size])
            done += size
    parts += stream.finish()
    whole = log_mel(sound, rate)
    assert whole.shape[1] == 1 + math.ceil(sound.shape[1] * 16_000 / rate) // settings.hop
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-6, atol=2e-6)


def test_what_is_kept_between_pieces_does_not_grow() -> None:
    resampler = Resampler(44_100, 16_000)
    for _ in range(50):
        resampler.add(noise(1, 10_000))
    kept = resampler._frames._kept
    assert kept is not None
    assert kept.untyped_storage().nbytes() < 4 * 1_000


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_file_gives_what_its_samples_give_and_is_computed_once(tmp_path: Path, suffix: str) -> None:
    sound = noise(30_000).clamp(-1, 1).numpy()
    path, same, other = (tmp_path / f"{name}.{suffix}" for name in "abc")
    soundfile.write(path, sound, 22_050, subtype="PCM_16")
    soundfile.write(other, sound[::-1], 22_050, subtype="PCM_16")
    same.write_bytes(path.read_bytes())
    stored = torch.from_numpy(soundfile.read(path, dtype="float32")[0])[None]
    cache = MemoryCache(2**24)
    first = log_mel_of_file(path, cache=cache)
    torch.testing.assert_close(first, log_mel(stored, 22_050)[0], rtol=0, atol=2e-6)
    assert torch.equal(log_mel_of_file(same, cache=cache), first)
    assert (cache.stats.hits, cache.stats.puts) == (1, 1)
    log_mel_of_file(other, cache=cache)
    log_mel_of_file(path, MelSettings(num_mels=40), cache=cache)
    assert (cache.stats.hits, cache.stats.puts) == (1, 3)


def test_a_long_file_is_read_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    soundfile.write(path, noise(700_000).numpy(), 16_000, subtype="FLOAT")
    blocks = [block.size for _, _, block in sound_blocks(path)]
    assert len(blocks) == 3
    assert sum(blocks) == 700_000
    pieces = list(log_mel_pieces(path))
    assert max(map(len, pieces)) <= 256
    torch.testing.assert_close(torch.cat(pieces), log_mel(noise(1, 700_000), 16_000)[0], rtol=1e-6, atol=2e-6)


def _truncated(path: Path) -> None:
    soundfile.write(path, noise(8_000).numpy(), 16_000)
    path.write_bytes(path.read_bytes()[:9_000])


def _not_finite(path: Path) -> None:
    soundfile.write(path, np.array([0.0] * 900 + [math.nan], np.float32), 16_000, subtype="FLOAT")


BAD: dict[str, Callable[[Path], object]] = {
    "truncated": _truncated,
    "no samples": lambda path: soundfile.write(path, np.zeros(0, np.float32), 16_000),
    "not finite": _not_finite,
    "too short: 100 samples": lambda path: soundfile.write(path, np.zeros(100, np.float32), 16_000),
    "2 channels": lambda path: soundfile.write(path, np.zeros((9_000, 2), np.float32), 16_000),
    "96,000 Hz": lambda path: soundfile.write(path, np.zeros(9_000, np.float32), 96_000),
    "cannot be decoded": lambda path: path.write_bytes(b"RIFF" + bytes(range(200))),
    "No such file": lambda path: path.unlink(missing_ok=True),
}


@pytest.mark.parametrize("reason", BAD)
@pytest.mark.parametrize("cached", [False, True])
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, reason: str, cached: bool) -> None:
    path, cache = tmp_path / "person.wav", MemoryCache(2**20)
    BAD[reason](path)
    with pytest.raises(BrokenFileError, match=rf"person\.wav: .*{reason}"):
        log_mel_of_file(path, cache=cache if cached else None)
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (torch.zeros(1, 0), "not empty"),
        (torch.zeros(9_000), "batch, samples"),
        (torch.zeros(1, 9_000, dtype=torch.int16), "int16"),
        (torch.full((1, 9_000), math.inf), "not finite"),
        (torch.zeros(1, 100), "too short"),
    ],
)
def test_samples_that_cannot_be_used_are_refused(samples: torch.Tensor, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        log_mel(samples, 16_000)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"rate": 4_000}, {"window": 511}, {"hop": 0}, {"hop": 513}, {"num_mels": 0}, {"scale": "bark"}),
        *({"low_hz": 9_000}, {"high_hz": math.nan}, {"floor": 0.0}),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="log-mel settings"):
        MelSettings(**wrong)
