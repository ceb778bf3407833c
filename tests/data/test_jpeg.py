"""JPEG files decoded by the kernels have the pixels of libjpeg-turbo, and what the kernels do not know is left to it."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.data.jpeg import decode as decoding
from hasten.data.jpeg.decode import by_kernels, decode_jpeg
from hasten.data.jpeg.header import read_header
from hasten.data.pictures import decode, resize

pytest.importorskip("numba")
image = pytest.importorskip("PIL.Image")
simplejpeg = pytest.importorskip("simplejpeg")
Pixels = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has decoded a lot."""
    monkeypatch.setattr(decoding, "_WORTH_LOADING", 0)


def picture(height: int, width: int, seed: int = 0, *, soft: bool = True) -> Pixels:
    generator = np.random.default_rng(seed)
    if not soft:
        return generator.integers(0, 256, (height, width, 3), np.uint8)
    coarse = generator.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    return np.asarray(image.fromarray(coarse).resize((width, height), image.Resampling.BICUBIC))


def jpeg(pixels: Pixels, **settings: Any) -> bytes:
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "JPEG", **settings)
    return out.getvalue()


def same(one: Any, other: Any) -> bool:
    """Whether two are pixels, and the same ones."""
    return one is not None and other is not None and np.array_equal(one, other)


def by_library(data: bytes) -> Pixels | None:
    """As libjpeg-turbo has it; None where it finds the file damaged."""
    try:
        found: Pixels = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False)
    except ValueError:
        return None
    return found


@settings(max_examples=250, deadline=None)
@given(
    height=st.integers(1, 100),
    width=st.integers(5, 100),
    quality=st.integers(1, 100),
    soft=st.booleans(),
    optimize=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_pixels_are_those_of_libjpeg_turbo(
    height: int, width: int, quality: int, soft: bool, optimize: bool, seed: int
) -> None:
    before, decoding._WORTH_LOADING = decoding._WORTH_LOADING, 0
    try:
        data = jpeg(picture(height, width, seed, soft=soft), quality=quality, optimize=optimize)
        whole = by_kernels(data)
        assert whole is not None
        assert np.array_equal(whole, np.asarray(image.open(io.BytesIO(data))))
        if height % 2 == width % 2 == 0:
            halved = by_kernels(data, (height // 2, width // 2))
            assert halved is not None
            assert np.array_equal(halved, np.asarray(image.fromarray(whole).reduce(2)))
    finally:
        decoding._WORTH_LOADING = before


@pytest.mark.parametrize("name", ["bccd", "sroie"])
def test_pixels_of_real_files_are_those_of_libjpeg_turbo(name: str) -> None:
    folder = Path(__file__).parents[3] / "shared" / "data" / name / "images"
    if not folder.is_dir():
        pytest.skip(f"needs the pictures of {name}")
    files = sorted(folder.glob("*.jpg"))[:25]
    assert files
    for path in files:
        data = path.read_bytes()
        whole, theirs = by_kernels(data), by_library(data)
        assert theirs is not None
        assert whole is not None
        assert np.array_equal(whole, theirs)
        height, width = (side // 2 for side in whole.shape[:2])
        assert np.array_equal(decode(data, (height, width)), resize(theirs, (height, width)))


OTHERS: dict[str, dict[str, Any]] = {
    "progressive": {"progressive": True},
    "colours as large as brightness": {"subsampling": "4:4:4"},
    "colours half as wide": {"subsampling": "4:2:2"},
    "restarts": {"restart_marker_blocks": 2},
    "red, green and blue": {"keep_rgb": True},
    "numbers of 16 bits": {"qtables": [[300] * 64, [300] * 64]},
}


@pytest.mark.parametrize("kind", list(OTHERS))
def test_other_kinds_are_left_to_the_library(kind: str) -> None:
    data = jpeg(picture(64, 96), **OTHERS[kind])
    assert by_kernels(data) is None
    assert np.array_equal(decode(data), np.asarray(image.open(io.BytesIO(data))))
    assert np.array_equal(decode(data, (32, 48)), np.asarray(image.open(io.BytesIO(data)).reduce(2)))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colours_are_left_to_others(mode: str) -> None:
    out = io.BytesIO()
    image.fromarray(picture(64, 96)).convert(mode).save(out, "JPEG")
    assert by_kernels(out.getvalue()) is None


def test_a_picture_of_few_columns_is_left_to_the_library() -> None:
    data = jpeg(picture(40, 4))
    assert by_kernels(data) is None
    assert np.array_equal(decode(data), np.asarray(image.open(io.BytesIO(data))))


def test_a_file_that_ends_early_is_damaged_wherever_it_ends() -> None:
    data = jpeg(picture(40, 40, soft=False), quality=60)
    for end in range(len(data)):
        assert by_kernels(data[:end]) is None
    with pytest.raises(ValueError, match="damaged JPEG"):
        decode(data[: len(data) // 2])


def test_bytes_beyond_the_picture_change_nothing() -> None:
    data = jpeg(picture(40, 40))
    assert same(by_kernels(data + b"thumbnail\xff\xd8\xff"), by_library(data))


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_reaches_memory_of_others(seed: int) -> None:
    """Bits flipped, bytes zeroed or written over: it is found damaged, or decoded, and nothing else is written to."""
    from hasten.data.jpeg import kernel

    generator = np.random.default_rng(seed)
    alike = refused = 0
    for number in range(400):
        height, width = generator.integers(6, 60, 2).tolist()
        data = bytearray(jpeg(picture(height, width, number, soft=number % 3 > 0), quality=int(generator.integers(1, 101))))
        begin = 2 if number % 4 == 0 else data.index(b"\xff\xda")
        for at in generator.integers(begin, len(data), generator.integers(1, 5)).tolist():
            if number % 5 == 0:
                data[at : at + 7] = bytes(7)
            else:
                data[at] = data[at] ^ 1 << int(generator.integers(8)) if number % 2 else int(generator.integers(256))
        found = read_header(bytes(data))
        tables = found and kernel.tables_of(found.header)
        if found is None or not tables or found.height * found.width > 10**6:
            refused += 1
            continue
        need = kernel.work_bytes(len(data) - found.scan, found.height, found.width)
        size = 3 * found.height * found.width
        memory, pixels = np.full(need + 2048, 0xA5, np.uint8), np.full(size + 2048, 0xA5, np.uint8)
        out = pixels[1024:-1024].reshape(found.height, found.width, 3)
        file = np.frombuffer(bytes(data), np.uint8)
        state = kernel.decode_into(file, found.scan, *tables, memory[1024:-1024], out, found.height, found.width, False)
        for kept in (memory, pixels):
            assert (kept[:1024] == 0xA5).all()
            assert (kept[-1024:] == 0xA5).all()
        theirs = by_library(bytes(data))
        if state != kernel.FINE:
            refused += 1
        elif theirs is not None:
            alike += np.array_equal(out, theirs)
    assert alike > 50
    assert refused > 50


def spec(counts: dict[int, int], symbols: list[int]) -> Pixels:
    return np.array([counts.get(length, 0) for length in range(1, 17)] + symbols, np.uint8)


@pytest.mark.parametrize(
    ("codes", "is_dc", "fine"),
    [
        (spec({1: 1, 2: 1}, [0, 11]), True, True),
        (spec({1: 3}, [0, 1, 2]), True, False),  # more codes than there can be
        (spec({2: 1, 16: 255, 15: 3}, [0] * 259), True, False),  # more symbols than a byte tells
        (spec({1: 1}, [12]), True, False),
        (spec({1: 1, 2: 1}, [0, 0xFA]), False, True),
        (spec({1: 1}, [0x0B]), False, False),
        (spec({1: 1}, [0x10]), False, False),  # neither a value, nor 16 zeros, nor the end
    ],
)
def test_codes_that_are_none_are_refused(codes: Pixels, is_dc: bool, fine: bool) -> None:
    from hasten.data.jpeg.tables import BITS, LONGER, fill_tables

    codes.flags.writeable = False
    assert fill_tables(codes, is_dc, np.empty(1 << BITS, np.uint32), np.empty(LONGER, np.int32)) is fine


def test_pixels_come_where_they_are_wanted() -> None:
    data = jpeg(picture(64, 96))
    batch = np.zeros((2, 32, 48, 3), np.uint8)
    assert decode(data, (32, 48), batch[1]) is not None
    assert np.array_equal(batch[1], np.asarray(image.open(io.BytesIO(data)).reduce(2)))
    assert not batch[0].any()
    apart = np.zeros((32, 96, 3), np.uint8)[:, ::2]
    assert decode(data, (32, 48), apart) is apart
    assert np.array_equal(apart, batch[1])
    other = decode(data, (20, 30), np.empty((20, 30, 3), np.uint8))
    assert np.array_equal(other, decode(data, (20, 30)))
    with pytest.raises(ValueError, match=r"the place for the pixels is \[32, 40, 3\], and they are \[32, 48, 3\]"):
        decode(data, (32, 48), np.empty((32, 40, 3), np.uint8))


def test_any_memory_that_holds_a_file_will_do() -> None:
    data = jpeg(picture(64, 96))
    (arrow,) = pa.array([data], pa.binary())
    for held in (memoryview(data), memoryview(arrow.as_buffer()), memoryview(bytearray(data))):
        assert same(by_kernels(held), by_library(data))
        assert same(decode(held), by_library(data))


def test_memory_that_few_pictures_need_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = jpeg(picture(64, 96)), jpeg(picture(640, 960))
    kept = []
    monkeypatch.setattr(decoding._MEMORY, "work", np.empty(0, np.uint8))
    for data, most in ((small, 2**26), (large, 2**18), (large, 2**26), (small, 2**26)):
        monkeypatch.setattr(decoding, "_MOST_KEPT_BYTES", most)
        assert same(by_kernels(data), by_library(data))
        kept.append(len(decoding._MEMORY.work))
    assert kept[0] == kept[1] < kept[2] == kept[3]


def test_threads_do_not_disturb_one_another() -> None:
    files = [jpeg(picture(64 + 8 * number, 200 - 8 * number, number)) for number in range(8)]
    wanted = [by_library(data) for data in files]
    wrong: list[int] = []

    def check() -> None:
        for number, data in enumerate(files * 20):
            if not same(by_kernels(data), wanted[number % 8]):
                wrong.append(number)

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_kernels_are_loaded_once_enough_was_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg(picture(64, 96))
    monkeypatch.setattr(decoding._Decoded, "num_pixels", 0)
    monkeypatch.setattr(decoding, "_WORTH_LOADING", 3 * 64 * 96)
    assert [by_kernels(data) is None for _ in range(4)] == [True, True, False, False]


def test_without_numba_the_library_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg(picture(64, 96))
    monkeypatch.setitem(sys.modules, "hasten.data.jpeg.kernel", None)
    decoding._kernel.cache_clear()
    try:
        assert by_kernels(data) is None
        assert same(decode_jpeg(data), by_library(data))
    finally:
        decoding._kernel.cache_clear()
