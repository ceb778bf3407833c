"""Read damaged files of every format: `python -m tests.data.fuzz FORMAT... [--seconds S] [--inputs N] [--seed K]`.

Each input is a valid source (`sources.py`) with some bytes changed. It must be read or refused: no other exception, no
crash, no endless loop, no unbounded memory, and no store that cannot be read. Inputs that fail are kept, one for each place
in the code that raised an exception.

The changes are drawn by a seeded generator. Coverage-guided fuzzers such as Atheris would see the Python code only, while
most of what parses bytes here is compiled: Arrow, Pillow, libjpeg, libsndfile, HDF5.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from hasten.core.errors import HastenError
from hasten.data import Store
from hasten.data.convert.job import convert
from hasten.data.cube.open import open_cube
from hasten.data.store.verify import verify
from hasten.recipes.detection.labels.read import read_labels
from hasten.recipes.findings import Findings
from hasten.recipes.ocr.regions import read_regions
from tests.data.sources import BOXES, CUBES, OUTLINES, STORES

SOURCES = {**STORES, **BOXES, **OUTLINES, **CUBES}
MOST_SECONDS = 20
"""Time for one input. It is far more than any takes, because other processes may run on the same core."""
MOST_BYTES = 3 * 2**30
"""Memory for one input. An image of 179 million pixels needs 2 GiB."""
_EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
_TOKENS = (
    b'"', b"'", b",", b";", b"\t", b"\n", b"\r", b"\0", b"{", b"}", b"[", b"]", b"<", b">", b"&", b"\xff\xfe", b"\xc3",
    b"\xef\xbb\xbf", b"\xed\xa0\x80", b"1" * 400, b"1e999", b"-1", b"NaN", b"null", b"[" * 3000, b'{"a":' * 3000,
    b"../../x", b"0x1p9999",
)  # fmt: skip


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return bytes with one to four changes.

    Args:
        data: The bytes of a valid file.
        other: Those of another file, to take parts from.
        rng: Source of the choices.
    """
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        if rng.random() < 0.4:  # headers
            at = rng.randrange(min(len(data), 128) + 1)
        end = min(len(data), at + rng.choice((1, 4, 64, len(data))))
        kind = rng.randrange(8)
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif kind == 1:
            number = rng.choice(_EDGES) + rng.randrange(-1, 2)
            size = rng.choice((1, 2, 4, 8))
            field = (number % 2 ** (8 * size)).to_bytes(size, rng.choice(("little", "big")))
            data = data[:at] + field + data[at + size :]
        elif kind == 2:
            data = data[:at]
        elif kind == 3:
            data = data[:at] + data[end:]
        elif kind == 4:
            data = data[:end] + data[at:end] * rng.choice((1, 2, 50)) + data[end:]
        elif kind == 5:
            start = rng.randrange(len(other) + 1)
            data = data[:at] + other[start : start + rng.choice((4, 64, len(other)))] + data[rng.choice((at, end)) :]
        elif kind == 6:
            data = data[:at] + rng.choice(_TOKENS) + data[rng.choice((at, end)) :]
        else:
            data = data[:at] + rng.randbytes(end - at) + data[end:]
        data = data[: 2**20]
    return data


def prepare(name: str, folder: Path, rng: random.Random) -> None:
    """Write a source into a folder, with one of its files, or a few, damaged."""
    SOURCES[name](folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in files]
    for _ in range(rng.choice((1, 1, 1, 3))):
        place = rng.randrange(len(files))
        files[place].write_bytes(mutated(files[place].read_bytes(), rng.choice(contents), rng))


def use(name: str, folder: Path, rng: random.Random) -> None:
    """Read a source as a user does. Raises a HastenError if it is refused."""
    if name in BOXES:
        read_labels(folder / "img", folder / "lab", Findings(), max_bad_frac=1.0)
        return
    if name in OUTLINES:
        read_regions(folder / "img", folder / "lab", Findings())
        return
    if name in CUBES:
        cube = open_cube([next(folder.iterdir())])
        for known in cube.variables.values():
            cube.read(known.name, 0, min(known.shape[0], 100))
        return
    source = next(folder.iterdir()) if name in {"mds", "mds_packed", "litdata"} else folder
    decoded: dict[str, Any] = {"pixels": "decoded", "size": (8, 8)} if name == "images" and rng.random() < 0.5 else {}
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        made = convert(source, Path(place) / "store", processes=1, max_bad_frac=1.0, **decoded)
        try:
            store = Store(Path(place) / "store")
            problems = verify(store)
            rows = store.__getitems__(range(len(store)))
        except HastenError as error:
            raise AssertionError(f"a conversion ended well, but its store is unusable: {error}") from error
        if problems or not len(rows) == len(store) == made.num_records:
            raise AssertionError(f"{made.num_records} records became {len(rows)} rows; problems: {problems}")


def fuzz(name: str, *, seconds: float, inputs: int, seed: int) -> list[str]:
    """Read damaged sources of a format until the time or the number is over, and return what failed."""
    counts = {"read": 0, "refused": 0, "failed": 0}
    failures: dict[str, str] = {}
    end = time.monotonic() + seconds
    number = seed
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as place:
        while number < seed + inputs and time.monotonic() < end:
            rng = random.Random(f"{name} {number}")
            folder = Path(place) / "input"
            folder.mkdir()
            prepare(name, folder, rng)
            signal.alarm(MOST_SECONDS)
            try:
                use(name, folder, rng)
                counts["read"] += 1
            except HastenError:
                counts["refused"] += 1
            except Exception as error:  # noqa: BLE001  every other exception is a fault
                counts["failed"] += 1
                last = traceback.extract_tb(error.__traceback__)[-1]
                kind = f"{type(error).__name__} at {last.filename}:{last.lineno}"
                if kind not in failures:
                    kept = tempfile.mkdtemp(prefix=f"found-{name}-{number}-")
                    shutil.copytree(folder, kept, dirs_exist_ok=True)
                    failures[kind] = f"{name}, input {number}, kept in {kept}:\n{''.join(traceback.format_exception(error))}"
            finally:
                signal.alarm(0)
            shutil.rmtree(folder)
            number += 1
    sys.stdout.write(f"{name}: {counts}\n")
    sys.stdout.flush()
    return list(failures.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", default=list(SOURCES))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--inputs", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, _too_slow)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    failures = [
        failure
        for name in chosen.formats
        for failure in fuzz(name, seconds=chosen.seconds, inputs=chosen.inputs, seed=chosen.seed)
    ]
    if failures:
        sys.exit("\n".join(failures))


def _too_slow(*_: Any) -> None:
    raise TimeoutError(f"an input took more than {MOST_SECONDS} s")


if __name__ == "__main__":
    main()
