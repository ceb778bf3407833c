"""The data that all systems read: made once, in each system's own form.

Text is made of the words of the counselling dialogues where UPSHIFT_DATA names their folder, and of Python's own help
otherwise; what is drawn at random is seeded, so that every machine measures the same rows.
"""

from __future__ import annotations

import importlib.util
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs.dialogues import conversations_file
from upshift.data import StoreWriter

NUM_TALKS, TALK_BYTES = 200_000, 1_300
NUM_TOKENS = 200_000_000
NUM_PICTURES, PICTURE = 2_000, (640, 480)
_ROWS = 2_000


def have(package: str) -> bool:
    """Whether a rival is installed."""
    return importlib.util.find_spec(package) is not None


def talks(count: int = NUM_TALKS) -> Iterator[str]:
    """Dialogues of about 1.3 KB, each different."""
    words = _words()
    random = np.random.default_rng(0)
    for start in range(0, count, _ROWS):
        for length in random.integers(TALK_BYTES // 2, TALK_BYTES * 3 // 2, min(_ROWS, count - start)).tolist():
            at = int(random.integers(0, len(words) - length))
            yield f"{int(random.integers(0, 10**9))} {words[at : at + length]}"


def _words() -> str:
    path = conversations_file()
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()
        return (
            " ".join(part["content"] for line in lines for part in json.loads(line)["messages"])
            .encode("ascii", "ignore")
            .decode()
        )
    from pydoc_data.topics import topics  # noqa: PLC0415  only where the dialogues are not there

    return " ".join(topics.values()).encode("ascii", "ignore").decode()


def write_text(folder: Path) -> None:
    """The dialogues as a store and as each rival's form."""
    rows = list(talks())
    with StoreWriter(folder / "store") as writer:
        for start in range(0, len(rows), _ROWS):
            writer.write({"text": rows[start : start + _ROWS]})
    (folder / "talks.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    if have("datasets"):
        from datasets import Dataset  # noqa: PLC0415  a rival, where it is installed

        Dataset.from_dict({"text": rows}).save_to_disk(folder / "huggingface")
    if have("litdata"):
        import litdata  # noqa: PLC0415  as above

        litdata.optimize(fn=_same, inputs=rows, output_dir=str(folder / "litdata"), chunk_bytes="64MB", num_workers=1)
    if have("webdataset"):
        _tars(rows, folder / "webdataset")


def _same(row: Any) -> Any:
    return row


def _tars(rows: list[str], folder: Path) -> None:
    folder.mkdir()
    for shard in range(8):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as archive:
            for number in range(shard, len(rows), 8):
                data = rows[number].encode()
                member = tarfile.TarInfo(f"{number:06d}.txt")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_tokens(folder: Path) -> None:
    """Tokens as one flat file and as a store."""
    random = np.random.default_rng(1)
    flat = np.memmap(folder / "tokens.bin", np.uint16, "w+", shape=(NUM_TOKENS,))
    part = 2**22
    with StoreWriter(folder / "store", block_rows=2**20, shard_bytes=2**31) as writer:
        for start in range(0, NUM_TOKENS, part):
            flat[start : start + part] = random.integers(0, 50_000, len(flat[start : start + part]), dtype=np.uint16)
            writer.write({"tokens": flat[start : start + part]})
    flat.flush()
    if have("litdata"):
        import litdata  # noqa: PLC0415  as above

        litdata.optimize(
            fn=_rows_of_tokens,
            inputs=[(str(folder / "tokens.bin"), start) for start in range(0, NUM_TOKENS // 4, part)],
            output_dir=str(folder / "litdata"),
            chunk_size=(2048 * 1024),
            item_loader=litdata.TokensLoader(block_size=1024),
            num_workers=1,
        )


def _rows_of_tokens(given: tuple[str, int]) -> Any:
    import torch  # noqa: PLC0415  in litdata's own process

    path, start = given
    yield torch.from_numpy(np.memmap(path, np.uint16, "r")[start : start + 2**22].astype(np.int32))


def write_pictures(folder: Path) -> None:
    """Pictures as JPEG files, as a store of their bytes, and as stores of pixels, whole and resized."""
    from PIL import Image  # noqa: PLC0415  of the extra `images`

    from upshift.data.convert.pictures import decode  # noqa: PLC0415  as Pillow

    (folder / "jpeg").mkdir()
    random = np.random.default_rng(2)
    width, height = PICTURE
    files, small, whole = (
        StoreWriter(folder / "store"),
        StoreWriter(folder / "small"),
        StoreWriter(folder / "raw", block_rows=64),
    )
    with files, small, whole:
        for number in range(NUM_PICTURES):
            coarse = Image.fromarray(random.integers(0, 255, (height // 16, width // 16, 3), dtype=np.uint8))
            out = io.BytesIO()
            coarse.resize((width, height), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
            data = out.getvalue()
            (folder / "jpeg" / f"{number:05d}.jpg").write_bytes(data)
            files.write({"image": [data]})
            small.write({"image": decode(data, (height // 2, width // 2))[None]})
            if number < NUM_PICTURES // 2:
                whole.write({"image": decode(data)[None]})
