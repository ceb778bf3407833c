"""Create the data that all systems read, in the format of each system.

Text is made from the words of the public counselling dialogues if they are there, and from Python's own help otherwise.
Random choices are seeded, so every machine measures the same rows.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from benchmarks.data_layer.sizes import PICTURE, TALK_BYTES, WINDOW, Sizes
from benchmarks.data_layer.system import have
from benchmarks.public_data import CONVERSATIONS
from hasten.data import StoreWriter
from hasten.data.pictures import decode

TARS = 8
_ROWS = 2_000
_PART = 2**21
"""Number of tokens written at once: one chunk of LitData."""


def talks(count: int) -> Iterator[str]:
    """Yield distinct dialogues of about 1.3 KB."""
    words = _words()
    random = np.random.default_rng(0)
    for start in range(0, count, _ROWS):
        for length in random.integers(TALK_BYTES // 2, TALK_BYTES * 3 // 2, min(_ROWS, count - start)).tolist():
            at = int(random.integers(0, len(words) - length))
            yield f"{int(random.integers(0, 10**9))} {words[at : at + length]}"


def _words() -> str:
    if CONVERSATIONS.is_file():
        lines = CONVERSATIONS.read_text(encoding="utf-8").splitlines()
        text = " ".join(part["content"] for line in lines for part in json.loads(line)["messages"])
        return text.encode("ascii", "ignore").decode()
    from pydoc_data.topics import topics  # noqa: PLC0415  only where the dialogues are not there

    return " ".join(topics.values()).encode("ascii", "ignore").decode()


def write_text(folder: Path, sizes: Sizes) -> None:
    """Write the dialogues as a store and in each rival's format."""
    rows = list(talks(sizes.talks))
    with StoreWriter(folder / "store") as writer:
        for start in range(0, len(rows), _ROWS):
            writer.write({"text": rows[start : start + _ROWS]})
    (folder / "talks.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    pyarrow.parquet.write_table(pa.table({"text": rows}), folder / "talks.parquet", row_group_size=2048)
    if have("datasets"):
        from datasets import Dataset  # noqa: PLC0415  a rival, where it is installed

        Dataset.from_dict({"text": rows}).save_to_disk(folder / "huggingface")
    if have("litdata"):
        optimize(partial(_some_talks, sizes.talks), list(range(TARS)), folder / "litdata", chunk_bytes="64MB")
    if have("webdataset"):
        members = [(f"{number:06d}.txt", row.encode()) for number, row in enumerate(rows)]
        write_tars(members, folder / "webdataset")


def _some_talks(count: int, part: int) -> Iterator[str]:
    """Yield every n-th dialogue, in a process of LitData."""
    yield from (text for number, text in enumerate(talks(count)) if number % TARS == part)


def optimize(make: Any, inputs: list[Any], folder: Path, **settings: Any) -> None:
    """Write a folder in LitData's format; `make` yields the samples of one input."""
    import litdata  # noqa: PLC0415  a rival, where it is installed

    litdata.optimize(fn=make, inputs=inputs, output_dir=str(folder), num_workers=1, **settings)


def write_tars(members: list[tuple[str, bytes]], folder: Path) -> None:
    """Distribute files over several tar files."""
    folder.mkdir()
    for shard in range(TARS):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as archive:
            for name, data in members[shard::TARS]:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_tokens(folder: Path, sizes: Sizes) -> None:
    """Write tokens as one flat file, as a store, and as LitData chunks."""
    random = np.random.default_rng(1)
    flat = np.memmap(folder / "tokens.bin", np.uint16, "w+", shape=(sizes.tokens,))
    with StoreWriter(folder / "store", block_rows=2**20, shard_bytes=2**31) as writer:
        for start in range(0, sizes.tokens, _PART):
            flat[start : start + _PART] = random.integers(0, 50_000, _PART, dtype=np.uint16)
            writer.write({"tokens": flat[start : start + _PART]})
    flat.flush()
    if have("litdata"):
        import litdata  # noqa: PLC0415  a rival, where it is installed

        optimize(
            partial(_some_tokens, str(folder / "tokens.bin")),
            list(range(0, sizes.tokens, _PART)),
            folder / "litdata",
            chunk_size=_PART,
            item_loader=litdata.TokensLoader(block_size=WINDOW),
        )


def _some_tokens(path: str, start: int) -> Iterator[Any]:
    import torch  # noqa: PLC0415  in LitData's own process

    yield torch.from_numpy(np.array(np.memmap(path, np.uint16, "r")[start : start + _PART]))


def jpegs(count: int) -> Iterator[bytes]:
    """Yield distinct images with soft colours, like those of a camera."""
    from PIL import Image  # noqa: PLC0415  of the extra `images`

    random = np.random.default_rng(2)
    width, height = PICTURE
    for _ in range(count):
        coarse = Image.fromarray(random.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8))
        out = io.BytesIO()
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        yield out.getvalue()


def write_pictures(folder: Path, sizes: Sizes) -> None:
    """Images as JPEG files, as stores of their bytes and of their pixels at half the size, and in tar files."""
    (folder / "jpeg").mkdir()
    members = []
    with StoreWriter(folder / "store") as files, StoreWriter(folder / "small") as small:
        for number, data in enumerate(jpegs(sizes.pictures)):
            (folder / "jpeg" / f"{number:05d}.jpg").write_bytes(data)
            files.write({"image": [data]})
            small.write({"image": decode(data, (PICTURE[1] // 2, PICTURE[0] // 2))[None]})
            members.append((f"{number:06d}.jpg", data))
    if have("webdataset"):
        write_tars(members, folder / "webdataset")


def write_raw(folder: Path, sizes: Sizes) -> None:
    """Write pixels as one array file, as a store, and as a store at half the size."""
    shape = (sizes.raw_pictures, PICTURE[1], PICTURE[0], 3)
    array = np.lib.format.open_memmap(folder / "pictures.npy", "w+", np.uint8, shape)
    with StoreWriter(folder / "store", block_rows=64) as whole, StoreWriter(folder / "small") as small:
        for number, data in enumerate(jpegs(sizes.raw_pictures)):
            array[number] = decode(data)
            whole.write({"image": array[number : number + 1]})
            small.write({"image": decode(data, (PICTURE[1] // 2, PICTURE[0] // 2))[None]})
    array.flush()
