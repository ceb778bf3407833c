"""A small network learns to tell voices apart, its embeddings become a column, and other models cannot smuggle in code."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from benchmarks.public_data import PUBLIC_DATA
from hasten.core.errors import BrokenFileError, CorruptError, DataError, JobError
from hasten.core.job import check_job
from hasten.data import Store
from hasten.data.cache.memory import MemoryCache
from hasten.recipes.dialogue.voice.embedding import (
    SpeakerJob,
    SpeakerNetwork,
    equal_error_rate,
    load_embedder,
    write_embeddings,
)
from hasten.recipes.dialogue.voice.features import MelSettings, log_mel_of_file
from hasten.recipes.dialogue.voice.similarity import ExactIndex
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut

CPU = torch.device("cpu")
DIGITS = PUBLIC_DATA / "fsdd" / "recordings"
PITCHES = {"anna": (220.0, 0.9), "ben": (110.0, 0.3), "cleo": (160.0, 0.6)}


def draw_voice(path: Path, pitch: float, tilt: float, seed: int) -> None:
    """Write a buzz with harmonics that fall off as the speaker's do, at a rate between 8 and 48 kHz."""
    random = np.random.default_rng(seed)
    rate = (8_000, 16_000, 22_050)[seed % 3]
    time = np.arange(int(rate * random.uniform(0.3, 0.6))) / rate
    pitch *= random.uniform(0.95, 1.05)
    sound = sum(tilt**n * np.sin(2 * math.pi * n * pitch * time + random.uniform(0, 6)) for n in range(1, 18))
    sound = sound * random.uniform(0.02, 0.05) * (1 + np.sin(2 * math.pi * 6 * time)) + random.normal(0, 0.001, len(time))
    soundfile.write(path, sound, rate, subtype="PCM_16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 20 recordings of each of three speakers."""
    path = tmp_path_factory.mktemp("voices")
    for number, (name, (pitch, tilt)) in enumerate(PITCHES.items()):
        for take in range(20):
            draw_voice(path / f"{take % 10}_{name}_{take}.wav", pitch, tilt, 100 * number + take)
    return path


def job_of(folder: Path, **settings: Any) -> SpeakerJob:
    made: SpeakerJob = type("Mine", (SpeakerJob,), {"folder": str(folder), "width": 32, "size": 16, **settings})()
    check_job(made)
    return made


def trained(job: SpeakerJob, updates: int) -> tuple[SpeakerNetwork, float]:
    loop = Loop(build(job, device=CPU))
    loop.run(updates)
    loop.close()
    error = HeldOut(loop.live).measure()["equal_error_rate"]
    network: SpeakerNetwork = loop.live.model.network  # type: ignore[assignment]
    return network.eval(), error


def test_a_network_learns_voices_and_its_embeddings_become_a_column(folder: Path, tmp_path: Path) -> None:
    cache = MemoryCache(2**26)
    job = job_of(folder, cache=cache, batch_size=12)
    network, error = trained(job, 25)
    assert error < 0.15
    assert cache.stats.puts == 60
    assert cache.stats.hits > 60
    held = [Path(path) for path, _ in job.valid_data()]
    write_embeddings(tmp_path / "store", held, network, settings=job.settings, cache=cache)
    taken = Store(tmp_path / "store").take(range(len(held)))
    assert taken["path"].to_pylist() == [str(path) for path in held]
    assert taken["embedding"].shape == (12, 16)
    with torch.inference_mode():
        expected = network(log_mel_of_file(held[3], job.settings)[None])[0].numpy()
    np.testing.assert_allclose(taken["embedding"][3], expected, atol=1e-6)
    nearest = ExactIndex(taken["embedding"]).search(taken["embedding"], 2).rows[:, 1].tolist()
    speakers = [job.speaker(path) for path in held]
    assert sum(speakers[row] == speakers[near] for row, near in enumerate(nearest)) >= 10


@pytest.mark.skipif(not DIGITS.is_dir(), reason="the spoken digits are not on this machine")
def test_unheard_recordings_of_spoken_digits_are_told_apart(tmp_path: Path) -> None:
    for path in DIGITS.glob("[0-3]_*.wav"):
        if int(path.stem.rsplit("_", 1)[1]) < 10:
            (tmp_path / path.name).symlink_to(path)
    job = job_of(tmp_path, cache=MemoryCache(2**26))
    _, before = trained(job, 0)
    _, error = trained(job, 40)
    assert len(job.recordings) >= 2
    assert error < min(0.3, before)


def test_a_trained_network_is_loaded_from_a_file_of_weights(folder: Path, tmp_path: Path) -> None:
    job, features = job_of(folder), torch.randn(1, 30, 40)
    model = job.model().eval()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    torch.testing.assert_close(job.network(tmp_path / "weights.pt")(features), model.network(features))
    with pytest.raises(JobError, match="another network"):
        job_of(folder, width=16).network(tmp_path / "weights.pt")


def test_the_size_of_the_network_is_a_few_hundred_thousand_parameters() -> None:
    assert sum(weight.numel() for weight in SpeakerNetwork(40).parameters()) < 300_000


def test_the_loudness_and_frequency_response_of_a_microphone_do_not_matter() -> None:
    network, features = SpeakerNetwork(40).eval(), torch.randn(1, 30, 40)
    torch.testing.assert_close(network(features + torch.randn(40)), network(features), atol=1e-5, rtol=0)
    assert network(features).norm().item() == pytest.approx(1.0)


def test_a_folder_that_cannot_be_learned_from_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="folder is not set"):
        SpeakerJob().train_data()
    with pytest.raises(DataError, match="0 speakers with no recordings"):
        job_of(tmp_path).train_data()
    draw_voice(tmp_path / "1_anna_1.wav", 100, 0.5, 0)
    with pytest.raises(DataError, match="1 speakers with 1 recordings"):
        job_of(tmp_path).train_data()
    assert not {path for path, _ in job_of(folder).train_data()} & {path for path, _ in job_of(folder).valid_data()}


def test_the_equal_error_rate_is_0_if_perfect_and_a_half_by_chance_and_never_of_nothing() -> None:
    drawn = np.random.default_rng(0).standard_normal((300, 8))
    assert equal_error_rate(np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]), ["a", "a", "b", "b"]) == 0.0
    assert equal_error_rate(drawn, [row % 3 for row in range(300)]) == pytest.approx(0.5, abs=0.02)
    broken = drawn.copy()
    broken[7] = math.nan
    refused: Sequence[tuple[Any, list[int]]] = ((drawn, [0] * 300), (drawn, list(range(300))), (broken, [0, 1, 2] * 100))
    for embeddings, speakers in refused:
        with pytest.raises(DataError, match="equal error rate"):
            equal_error_rate(embeddings, speakers)


def test_your_own_model_comes_from_torchscript_and_never_from_a_pickle(folder: Path, tmp_path: Path) -> None:
    network, features = SpeakerNetwork(40).eval(), torch.randn(1, 30, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(network, features).save(str(tmp_path / "own.ts"))
    loaded = load_embedder(tmp_path / "own.ts")
    with torch.inference_mode():
        torch.testing.assert_close(loaded(torch.ones(1, 50, 40)), network(torch.ones(1, 50, 40)))
    write_embeddings(tmp_path / "store", sorted(folder.iterdir())[:2], loaded, settings=SpeakerJob.settings)
    assert len(Store(tmp_path / "store")) == 2

    class Harm:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "harmed",))

    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Harm()))
    torch.save(Harm(), tmp_path / "saved.pt")
    (tmp_path / "cut.ts").write_bytes((tmp_path / "own.ts").read_bytes()[:5_000])
    for name in ("pickle.pt", "saved.pt", "cut.ts"):
        with pytest.raises(CorruptError, match=name):
            load_embedder(tmp_path / name)
    (tmp_path / "export.pt2").write_bytes(b"")
    with pytest.raises(DataError, match="may contain pickled code"):
        load_embedder(tmp_path / "export.pt2")
    with pytest.raises(DataError, match="there is no file"):
        load_embedder(tmp_path / "none.ts")
    assert not (tmp_path / "harmed").exists()


def test_nothing_is_written_if_a_file_or_the_model_fails(folder: Path, tmp_path: Path) -> None:
    paths = sorted(folder.iterdir())[:3]
    broken = tmp_path / "broken.wav"
    broken.write_bytes(paths[0].read_bytes()[:1_000])
    settings = MelSettings(rate=8_000, window=256, hop=80, num_mels=40)
    network = SpeakerNetwork(40).eval()
    with pytest.raises(BrokenFileError, match=r"broken\.wav"):
        write_embeddings(tmp_path / "store", [*paths, broken], network, settings=settings)
    for wrong in (lambda x: x.mean(dim=1) * math.nan, lambda x: x, lambda x: x.mean(dim=2)):
        with pytest.raises(DataError, match="the model returned"):
            write_embeddings(tmp_path / "store", paths, wrong, settings=settings)
    assert not list(tmp_path.rglob("*.arrow"))
    with pytest.raises(DataError):
        Store(tmp_path / "store")
