"""Sound files of every common kind are stored with the precision they have, or are quarantined with a reason."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from hasten.core.errors import DataError, MachineError
from hasten.data import sound
from hasten.data.convert.job import convert
from hasten.data.convert.readers.sound import Sound
from hasten.data.sound import read_sound
from hasten.data.store.store import Store
from tests.data.reading import read

WAVE = np.stack([np.linspace(-0.9, 0.9, 1_000), np.linspace(-0.4, 0.4, 1_000)], -1)


def saved(kind: str = "WAV", subtype: str = "PCM_16", samples: Any = WAVE, rate: int = 16_000, **settings: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype, **settings)
    return file.getvalue()


def read_one(folder: Path, data: bytes, name: str = "s.wav") -> tuple[Any, str]:
    """Return the row of a sound, or the reason why it is bad."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    _, rows, bad = read(Sound, folder)
    assert len(rows) + len(bad) == 1
    return (rows[0], "") if rows else (None, bad[0].reason)


PLAIN = saved()
DATA = PLAIN.index(b"data") + 4
"""Place of the size of the samples."""


@pytest.mark.parametrize(
    ("kind", "subtype", "dtype"),
    [
        ("WAV", "PCM_U8", "int16"),
        ("WAV", "PCM_16", "int16"),
        ("WAV", "ULAW", "int16"),
        ("WAV", "ALAW", "int16"),
        ("WAV", "MS_ADPCM", "int16"),
        ("WAV", "PCM_24", "float"),
        ("WAV", "FLOAT", "float"),
        ("WAV", "PCM_32", "double"),
        ("WAV", "DOUBLE", "double"),
        ("WAVEX", "PCM_16", "int16"),
        ("WAVEX", "FLOAT", "float"),
        ("RF64", "PCM_16", "int16"),
        ("AIFF", "PCM_16", "int16"),
        ("FLAC", "PCM_16", "int16"),
        ("FLAC", "PCM_24", "float"),
        ("OGG", "VORBIS", "float"),
        ("OGG", "OPUS", "float"),
        ("MP3", "MPEG_LAYER_III", "float"),
    ],
)
def test_every_kind_gives_the_samples_of_soundfile(tmp_path: Path, kind: str, subtype: str, dtype: str) -> None:
    name = {"WAV": "s.wav", "WAVEX": "s.wav", "RF64": "s.wav", "OGG": "s.ogg"}.get(kind, f"s.{kind.lower()}")
    row, reason = read_one(tmp_path / "in", saved(kind, subtype), name)
    schema, _, _ = read(Sound, tmp_path / "in")
    assert (reason, str(schema.field("samples").type)) == ("", f"large_list<item: {dtype}>")
    numpy_dtype = {"int16": "int16", "float": "float32", "double": "float64"}[dtype]
    want, rate = soundfile.read(tmp_path / "in" / name, dtype=numpy_dtype)
    assert (row["path"], row["label"], row["rate"], row["channels"]) == (name, "", rate, 2)
    np.testing.assert_allclose(row["samples"], want.reshape(-1), rtol=0, atol=2e-7 if kind == "MP3" else 0)  # it seeks first


def test_one_column_holds_the_samples_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "b").mkdir()
    (tmp_path / "in" / "a" / "16.wav").write_bytes(saved())
    (tmp_path / "in" / "b" / "24.flac").write_bytes(saved("FLAC", "PCM_24"))
    schema, rows, bad = read(Sound, tmp_path / "in")
    assert (str(schema.field("samples").type), bad) == ("large_list<item: float>", [])
    assert [(row["path"], row["label"]) for row in rows] == [("a/16.wav", "a"), ("b/24.flac", "b")]
    integers = soundfile.read(tmp_path / "in" / "a" / "16.wav", dtype="int16")[0]
    np.testing.assert_array_equal(np.array(rows[0]["samples"]) * 2**15, integers.reshape(-1))


def test_sounds_that_need_a_wider_type_are_not_rounded(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(saved(subtype="PCM_24"))
    with pytest.raises(ValueError, match=r"its samples \(PCM_24\) do not fit into int16, the type of the column"):
        read_sound(tmp_path / "a.wav", np.dtype(np.int16))


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x7FFFF000])
def test_wav_files_from_a_pipe_are_read_to_their_end(tmp_path: Path, size: int) -> None:
    piped = PLAIN[:4] + b"\xff" * 4 + PLAIN[8:DATA] + struct.pack("<I", size) + PLAIN[DATA + 4 :]
    row, _ = read_one(tmp_path, piped)
    np.testing.assert_array_equal(row["samples"], np.frombuffer(PLAIN[DATA + 4 :], "<i2"))


def test_flac_files_from_a_pipe_are_read_to_their_end(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, (40_000, 2))
    data = bytearray(saved("FLAC", samples=samples))
    data[21] &= 0xF0  # the number of samples: 36 bits of the first block
    data[22:26] = bytes(4)
    row, _ = read_one(tmp_path, bytes(data), "s.flac")
    np.testing.assert_array_equal(row["samples"], np.rint(samples * 2**15).reshape(-1))


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_mp3_files_without_a_length_are_read_to_their_end(tmp_path: Path, mode: str) -> None:
    time = np.arange(200_000) / 16_000
    samples = np.sin(2_000 * time * time) * (
        time > 1
    )  # silence first: a guess from the first frame is far too long or short
    data = saved("MP3", "MPEG_LAYER_III", samples, bitrate_mode=mode, compression_level=0.3)
    row, _ = read_one(tmp_path / "whole", data, "s.mp3")
    without = data[data.index(data[:2], 4) :]  # without the first frame, which holds the length
    rest, reason = read_one(tmp_path / "rest", without, "s.mp3")
    assert (len(row["samples"]), reason) == (200_000, "")
    assert 0 <= len(rest["samples"]) - 200_000 < 3 * 1_152  # with the padding that the first frame says to drop
    half, reason = read_one(tmp_path / "half", data[: len(data) // 2], "s.mp3")
    assert half is None
    assert "of 200,000 frames are missing" in reason


def changed(at: int, data: bytes) -> bytes:
    """Return a WAV file with other bytes in its header."""
    return PLAIN[:at] + data + PLAIN[at + len(data) :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "the sound cannot be decoded: ", id="nothing"),
        pytest.param(b"RIFF", "the sound cannot be decoded: ", id="start"),
        pytest.param(b"this is not sound" * 99, "the sound cannot be decoded: Format not recognised", id="text"),
        pytest.param(PLAIN[:2_000], "it is truncated: 1,956 of 4,000 bytes of sound", id="truncated"),
        pytest.param(saved("RF64")[:2_000], "it is truncated: ", id="truncated RF64"),
        pytest.param(saved("AIFF")[:2_000], "it is truncated: ", id="truncated AIFF"),
        pytest.param(saved("FLAC")[:300], "the sound cannot be decoded: ", id="truncated FLAC"),
        pytest.param(saved("OGG", "VORBIS")[:3_000], "the sound cannot be decoded: ", id="truncated OGG"),
        pytest.param(saved(samples=WAVE[:0]), "it contains no samples", id="no samples"),
        pytest.param(changed(22, bytes(2)), "the sound cannot be decoded: Channel count is zero", id="no channels"),
        pytest.param(changed(22, b"\xff\xff"), "the sound cannot be decoded: Too many channels", id="many channels"),
        pytest.param(changed(24, bytes(4)), "the sound cannot be decoded: ", id="rate 0"),
        pytest.param(changed(24, b"\xff" * 4), "the sound cannot be decoded: ", id="rate below 0"),
        pytest.param(
            changed(24, struct.pack("<I", 32_000)),
            "its header contradicts itself: 32,000 Hz, but 64,000 bytes per second",
            id="wrong rate",
        ),
        pytest.param(saved(subtype="FLOAT", samples=WAVE * np.nan), "some samples are not finite numbers", id="NaN"),
        pytest.param(saved(subtype="DOUBLE", samples=WAVE * np.inf), "some samples are not finite numbers", id="infinite"),
    ],
)
def test_sounds_that_cannot_be_used_are_quarantined(tmp_path: Path, data: bytes, reason: str) -> None:
    row, found = read_one(tmp_path, data)
    assert row is None
    assert found.startswith(reason)
    assert str(tmp_path) not in found


def test_a_flac_file_cannot_claim_or_expand_to_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(saved("FLAC"))
    data[22:26] = b"\xff" * 4
    assert "frames are missing" in read_one(tmp_path / "claims", bytes(data), "s.flac")[1]
    monkeypatch.setattr(sound, "MAX_SAMPLES", 300_000)
    quiet = saved("FLAC", samples=np.zeros((200_000, 2)))
    assert len(quiet) < 10_000
    assert read_one(tmp_path / "expands", quiet, "s.flac") == (None, "it has more than 300,000 samples")


def test_sounds_become_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "sounds" / "a"
    folder.mkdir(parents=True)
    for number in range(1, 5):
        soundfile.write(folder / f"{number}.wav", np.arange(number * 100, dtype=np.int16) - 50, 8_000)
    (folder / "bad.wav").write_bytes(b"RIFF")
    made = convert(tmp_path / "sounds", tmp_path / "s", max_bad_frac=0.5, processes=1)
    store = Store(tmp_path / "s")
    rows = [store[number] for number in range(len(store))]
    assert made.num_bad == 1
    assert [(row["path"], row["label"], row["rate"], row["channels"], len(row["samples"])) for row in rows] == [
        (f"a/{number}.wav", "a", 8_000, 1, number * 100) for number in range(1, 5)
    ]
    assert rows[3]["samples"][:3] == [-50, -49, -48]
    with pytest.raises(DataError, match="no column 'text'; its columns are path, label, rate, channels, samples"):
        convert(tmp_path / "sounds", tmp_path / "t", columns=["text"])


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    sound._sequential.cache_clear()
    (tmp_path / "s.wav").write_bytes(PLAIN)
    with pytest.raises(MachineError, match=r"sound needs soundfile: pip install 'hasten\[audio\]'"):
        read(Sound, tmp_path)
    sound._sequential.cache_clear()
