"""Measure log-mel features against librosa, in turns: spoken digits, and an hour of sound.

The digits are `fsdd/recordings` of the public data if they are there, else generated: 8 kHz and about half a second each.
They are decoded beforehand. The hour is a FLAC file of generated sound at 16 kHz. Here reading it counts, and each way runs
in a process of its own, which reports the growth of its peak memory: Hasten reads it in blocks, `librosa` at once, and
`librosa in pieces` a minute at a time (its features differ where the pieces meet). `one thread` is as in a loader's worker.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import torch

from benchmarks.public_data import PUBLIC_DATA
from benchmarks.record import ROOT
from benchmarks.turns import goal, in_turns, most_memory, times
from hasten.recipes.dialogue.voice.features import MelSettings, log_mel, log_mel_of_file, log_mel_pieces

FOLDER = PUBLIC_DATA / "fsdd"
DIGITS, HOUR_S, ROUNDS = 2000, 3600, 5
SPEECH = MelSettings(rate=8_000, window=256, hop=80, num_mels=40)
GOAL = 3.0
TOLERANCE = 1e-3
"""Largest accepted difference of natural logarithms."""
BUDGET_BYTES = 2**27
"""Largest accepted growth of memory for the hour."""
Sound = npt.NDArray[np.float32]


def run(_found: Mapping[str, Any], count: int = DIGITS, seconds: int = HOUR_S, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure the digits and the hour.

    Args:
        count: Number of recordings.
        seconds: Length of the long sound.
        rounds: Number of rounds.
    """
    digits = _digits(count, rounds)
    with TemporaryDirectory() as folder:
        hour = _hour(Path(folder) / "hour.flac", seconds, rounds)
    budget = hour["growth_bytes"]["Hasten"]
    return {
        "digits": digits,
        "hour": hour,
        "goals": {
            "digits, speed over librosa": goal(GOAL, digits["over_librosa"]),
            "hour, speed over librosa": goal(GOAL, hour["over_librosa"]),
            "hour, memory": {"goal": BUDGET_BYTES, "seen": budget, "reached": budget <= BUDGET_BYTES},
        },
    }


def _digits(count: int, rounds: int) -> dict[str, Any]:
    sounds, source = _recordings(count)
    tensors = [torch.from_numpy(sound)[None] for sound in sounds]
    difference = _same(
        [log_mel(one, SPEECH.rate, SPEECH)[0].numpy() for one in tensors], [theirs(one, SPEECH) for one in sounds]
    )

    def ours() -> None:
        for one in tensors:
            log_mel(one, SPEECH.rate, SPEECH)

    def alone() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        ours()
        torch.set_num_threads(threads)

    seconds = in_turns(
        {"Hasten": ours, "Hasten, one thread": alone, "librosa": lambda: [theirs(one, SPEECH) for one in sounds]}, rounds
    )
    return {
        "source": source,
        "recordings": len(sounds),
        "sound_s": sum(map(len, sounds)) / SPEECH.rate,
        "largest_difference": difference,
        "over_librosa": times(seconds["librosa"], seconds["Hasten"]),
        "seconds": seconds,
    }


def _recordings(count: int) -> tuple[list[Sound], str]:
    paths = sorted((FOLDER / "recordings").glob("*.wav"))[:count]
    if paths:
        return [soundfile.read(path, dtype="float32")[0] for path in paths], "spoken digits (FSDD)"
    rng = np.random.default_rng(0)
    sizes = rng.integers(SPEECH.rate // 4, SPEECH.rate * 3 // 4, count)
    return [rng.normal(0, 0.05, size).astype(np.float32) for size in sizes], "generated"


def theirs(sound: Sound, settings: MelSettings) -> Sound:
    """Return the features by librosa, `[frames, mels]`."""
    librosa: Any = import_module("librosa")  # its types are incomplete
    sizes = {"n_fft": settings.window, "hop_length": settings.hop, "n_mels": settings.num_mels}
    power = librosa.feature.melspectrogram(y=sound, sr=settings.rate, pad_mode="constant", **sizes)
    logs: Sound = np.log(np.maximum(power, settings.floor)).T
    return logs


def _same(ours: list[Sound], others: list[Sound]) -> float:
    difference = max(float(np.abs(a - b).max()) for a, b in zip(ours, others, strict=True))
    if not difference <= TOLERANCE:
        raise AssertionError(f"features differ by {difference}")
    return difference


def _hour(path: Path, seconds: int, rounds: int) -> dict[str, Any]:
    settings, rng = MelSettings(), np.random.default_rng(0)
    with soundfile.SoundFile(path, "w", settings.rate, 1, "PCM_16") as file:
        for _ in range(seconds // 60):
            file.write(rng.normal(0, 0.05, 60 * settings.rate).astype(np.float32))
    few = np.ascontiguousarray(soundfile.read(path, frames=60 * settings.rate, dtype="float32")[0])
    difference = _same([log_mel_of_file(path)[:5900].numpy()], [theirs(few, settings)[:5900]])
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name in random.sample(list(WAYS), len(WAYS)):
            command = [sys.executable, "-m", "benchmarks.dialogue.log_mel", name, str(path)]
            made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)
            taken[name].append(json.loads(made.stdout))
    times_s = {name: [one["seconds"] for one in found] for name, found in taken.items()}
    if len({one["frames"] for name in ("Hasten", "librosa") for one in taken[name]}) > 1:
        raise AssertionError("the numbers of frames differ")
    return {
        "sound_s": seconds,
        "largest_difference_of_first_minute": difference,
        "over_librosa": times(times_s["librosa"], times_s["Hasten"]),
        "over_pieces": times(times_s["librosa in pieces"], times_s["Hasten"]),
        "growth_bytes": {name: max(one["growth_bytes"] for one in found) for name, found in taken.items()},
        "seconds": times_s,
    }


def _ours(path: Path) -> int:
    return sum(len(piece) for piece in log_mel_pieces(path))


def _one_thread(path: Path) -> int:
    torch.set_num_threads(1)
    return _ours(path)


def _librosa(path: Path) -> int:
    return len(theirs(soundfile.read(path, dtype="float32")[0], MelSettings()))


def _pieces(path: Path) -> int:
    blocks = soundfile.blocks(path, blocksize=60 * MelSettings().rate, dtype="float32")
    return sum(len(theirs(block, MelSettings())) for block in blocks)


WAYS: dict[str, Callable[[Path], int]] = {
    "Hasten": _ours, "Hasten, one thread": _one_thread, "librosa": _librosa, "librosa in pieces": _pieces
}  # fmt: skip


def main() -> None:
    """Measure one way on the long sound, and print its seconds and the growth of the peak memory."""
    name, path = sys.argv[1], Path(sys.argv[2])
    few = np.random.default_rng(0).normal(size=32_000).astype(np.float32)
    theirs(few, MelSettings())  # load librosa, and start the threads
    log_mel(torch.from_numpy(few)[None], 16_000)
    before, began = most_memory(), perf_counter()
    frames = WAYS[name](path)
    seconds = perf_counter() - began
    print(json.dumps({"seconds": seconds, "growth_bytes": most_memory() - before, "frames": frames}))


if __name__ == "__main__":
    main()
