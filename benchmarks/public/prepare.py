"""Create the data that the public scripts expect; nothing is downloaded.

Text is the source of Python's standard library. Digits are those of scikit-learn, scaled to the size of MNIST. Images,
graphs and spectrograms are random. Each function fills a folder, is seeded, and names its output in its first line.
"""

from __future__ import annotations

import itertools
import pickle
import re
import struct
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hasten.core.errors import MachineError

NUM_CHARACTERS = 1_115_394
"""The size of Tiny Shakespeare, which two of the scripts were written for."""
NUM_WORDS = {"train": 929_589, "valid": 73_760, "test": 82_430}
"""As in Penn Treebank (Mikolov et al., 2010)."""
NUM_DIFFERENT_WORDS = 10_000
NUM_DIGITS = {"train": 60_000, "t10k": 10_000}
"""As in MNIST."""
NUM_FEWER_DIGITS = {"train": 10_000, "t10k": 2_000}
NUM_PICTURES = {"train": 200, "val": 20}
"""Number for each class."""
NUM_CLASSES = 10
PICTURE_SIDE = 96


def characters(folder: Path) -> None:
    """The source of Python's standard library as `input.txt`, 1.1 million characters."""
    (folder / "input.txt").write_text(_text(NUM_CHARACTERS), encoding="ascii")


def character_bins(folder: Path) -> None:
    """The source of Python's standard library, 1.1 million characters as 16-bit integers, nine tenths of it for training."""
    text = _text(NUM_CHARACTERS)
    known = sorted(set(text))
    numbers = {character: number for number, character in enumerate(known)}
    ids = np.array([numbers[character] for character in text], dtype=np.uint16)
    cut = int(len(ids) * 0.9)
    ids[:cut].tofile(folder / "train.bin")
    ids[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(known), "stoi": numbers, "itos": dict(enumerate(known))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def words(folder: Path) -> None:
    """The source of Python's standard library as words, 10,000 distinct ones, of the length of Penn Treebank."""
    _words(folder, NUM_WORDS)


def fewer_words(folder: Path) -> None:
    """The same words, a fifth of their number."""
    _words(folder, {name: count // 5 for name, count in NUM_WORDS.items()})


def _words(folder: Path, counts: Mapping[str, int]) -> None:
    lines = lines_of_words(sum(counts.values()))
    for name, count in counts.items():
        (folder / f"{name}.txt").write_text(_take(lines, count), encoding="ascii")


def mnist(folder: Path) -> None:
    """The digits of scikit-learn, enlarged three times, shifted at random and repeated, in the files of MNIST."""
    _mnist(folder / "MNIST" / "raw", NUM_DIGITS)


def fewer_digits(folder: Path) -> None:
    """The same digits in the files of MNIST, a sixth of its number: 10,000 to train on and 2,000 to test."""
    _mnist(folder / "MNIST" / "raw", NUM_FEWER_DIGITS)


def fashion(folder: Path) -> None:
    """The digits of scikit-learn, enlarged three times, shifted at random and repeated, in the files of Fashion-MNIST."""
    _mnist(folder / "FashionMNIST" / "raw", NUM_DIGITS)


def digits() -> tuple[np.ndarray[Any, np.dtype[Any]], np.ndarray[Any, np.dtype[Any]]]:
    """Return the digits of scikit-learn: images [digit, 8, 8] of 0 to 16, and targets [digit]."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, needed for these scripts alone
    except ImportError as error:
        raise MachineError("The digits come from scikit-learn, which is not installed: pip install scikit-learn.") from error
    found: Any = load_digits()
    return found.images, found.target


def _mnist(raw: Path, counts: Mapping[str, int]) -> None:
    images, targets = digits()
    large = np.kron(images / 16.0 * 255.0, np.ones((1, 3, 3))).astype(np.uint8)
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, count in counts.items():
        chosen = random.integers(0, len(large), count)
        down, right = random.integers(0, 5, (2, count))
        shifted = np.zeros((count, 28, 28), dtype=np.uint8)
        for at, (index, y, x) in enumerate(zip(chosen, down, right, strict=True)):
            shifted[at, y : y + 24, x : x + 24] = large[index]
        labels = targets[chosen].astype(np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + shifted.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def pictures(folder: Path) -> None:
    """Random images of 96 pixels as PNG, ten classes of 200 for training and 20 for validation."""
    random = np.random.default_rng(0)
    for split, count in NUM_PICTURES.items():
        for kind in range(NUM_CLASSES):
            place = folder / split / f"class{kind}"
            place.mkdir(parents=True)
            for number in range(count):
                coarse = random.integers(0, 256, (PICTURE_SIDE // 8, PICTURE_SIDE // 8, 3), dtype=np.uint8)
                (place / f"{number}.png").write_bytes(png(np.kron(coarse, np.ones((8, 8, 1), dtype=np.uint8))))


def png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Encode an image as PNG (ISO/IEC 15948): eight bits per channel, no filter. `pixels`: [height, width, 3]."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), dtype=np.uint8), pixels.reshape(height, width * 3)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _sources() -> Iterator[str]:
    """Yield the modules of the standard library, only printable ASCII, endlessly."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if not paths:
        raise MachineError("This Python has no source files of the standard library, from which the text is made.")
    for path in itertools.cycle(paths):
        yield re.sub(r"[^\n -~]", "", path.read_text(encoding="utf-8"))


def _text(length: int) -> str:
    pieces, have = [], 0
    for source in _sources():
        pieces.append(source)
        have += len(source)
        if have >= length:
            break
    return "".join(pieces)[:length]


def lines_of_words(count: int) -> Iterator[list[str]]:
    """Yield lines with at least `count` words in total, counting line ends; rare words become `<unk>`."""
    lines, have = [], 0
    for source in _sources():
        for line in source.splitlines():
            found = re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]", line)
            if found:
                lines.append(found)
                have += len(found) + 1
        if have >= count:
            break
    counted = Counter(itertools.chain.from_iterable(lines))
    kept = {word for word, _ in counted.most_common(NUM_DIFFERENT_WORDS - 2)}  # two are `<unk>` and the line end
    return iter([[word if word in kept else "<unk>" for word in line] for line in lines])


def _take(lines: Iterator[list[str]], count: int) -> str:
    """Return the next lines until they have `count` words; a line end counts as one, as in the scripts."""
    taken, have = [], 0
    while have < count and (line := next(lines, None)) is not None:
        taken.append(" ".join(line))
        have += len(line) + 1
    return "\n".join(taken) + "\n"
