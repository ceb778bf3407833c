"""The image files of a batch are decoded into one array in reused memory, and errors name the file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.core.errors import DataError
from hasten.data import DecodeImages, Store, StoreWriter, Stream
from hasten.data.pictures import decode


def photos(folder: Path, sizes: list[tuple[int, int]], **columns: Any) -> Path:
    """Write a store of JPEG files of these sizes. A size of None is a damaged file."""
    image = pytest.importorskip("PIL.Image")
    files = []
    for number, size in enumerate(sizes):
        out = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8) if size[0] else None
        if pixels is not None:
            image.fromarray(pixels).save(out, "JPEG")
        files.append(out.getvalue() or b"\xff\xd8\xff damaged")
    with StoreWriter(folder / "photos") as writer:
        writer.write({"image": files, "number": list(range(len(files))), **columns})
    return folder / "photos"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [None, (24, 32), (20, 30)])
def test_image_files_are_decoded_into_one_tensor_a_batch(tmp_path: Path, workers: int, size: tuple[int, int] | None) -> None:
    store = photos(tmp_path, [(48, 64)] * 20)
    files = Store(store)
    stream = Stream(store, batch_size=8, workers=workers, transform=DecodeImages("image", size=size))
    held = []
    for _ in range(2):
        for batch in stream:
            assert isinstance(batch["image"], torch.Tensor)
            assert batch["image"].shape == (batch.num_rows, *(size or (48, 64)), 3)
            held.append(batch)
    for batch in held:  # all batches are referenced, so no memory was reused
        for number, pixels in zip(batch["number"].to_pylist(), batch["image"].numpy(), strict=True):
            assert np.array_equal(pixels, decode(files[number]["image"], size))


def test_memory_of_decoded_images_is_reused(tmp_path: Path) -> None:
    stream = Stream(photos(tmp_path, [(200, 200)] * 12), batch_size=2, transform=DecodeImages("image", form="numpy"))
    assert len({batch["image"].ctypes.data for batch in stream}) <= 2


def test_errors_name_the_image_that_cannot_be_decoded(tmp_path: Path) -> None:
    sizes = [(40, 40), (40, 40), (0, 0)]
    store = photos(tmp_path, sizes, path=["a.jpg", "b.jpg", "c.jpg"])
    with pytest.raises(DataError, match=r"^c\.jpg cannot be used: the image cannot be decoded.* Convert the folder again"):
        list(Stream(store, batch_size=3, shuffle=False, transform=DecodeImages("image", size=(40, 40))))
    other = photos(tmp_path / "other", [(40, 40), (40, 50)])
    with pytest.raises(
        DataError, match=r"^image 1 of a batch cannot be used: the image has the shape .* set a size if the sizes"
    ):
        list(Stream(other, batch_size=2, shuffle=False, transform=DecodeImages("image")))
    with pytest.raises(DataError, match=r"no column 'pixels' to decode: the batch has image, number"):
        list(Stream(other, batch_size=2, transform=DecodeImages("pixels")))
    with pytest.raises(DataError, match=r"image 0 .* expected the bytes of a file, not int"):
        list(Stream(other, batch_size=2, shuffle=False, transform=DecodeImages("number", size=(4, 4))))


def test_jpeg_files_are_decoded_at_a_smaller_scale_if_asked_for(tmp_path: Path) -> None:
    store = photos(tmp_path, [(48, 64)] * 4)
    files = Store(store)
    (batch,) = Stream(store, batch_size=4, shuffle=False, transform=DecodeImages("image", scale=4))
    assert batch["image"].shape == (4, 12, 16, 3)
    for number, pixels in enumerate(batch["image"].numpy()):
        assert np.array_equal(pixels, decode(files[number]["image"], scale=4))


@pytest.mark.parametrize("arguments", [{"form": "arrow"}, {"size": (0, 3)}, {"scale": 3}])
def test_wrong_arguments_of_decoding_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"must be torch or numpy|at least 1|1, 2, 4 or 8"):
        DecodeImages("image", **arguments)
