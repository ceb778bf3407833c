"""Write a small valid source of each format with the library that users write it with."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import soundfile
import xarray
from PIL import Image

from tests.data.test_chunks import litdata_item, mds_samples, u32, write_litdata, write_mds

ROWS = [{"id": n, "text": f"é{n}", "score": n / 4, "on": n % 2 == 0, "list": [n] * (n % 3)} for n in range(12)]
TABLE = pa.Table.from_pylist(ROWS)
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
WAVE = np.sin(np.arange(400) / 9)[:, None] * [0.5, 0.3]


def write_csv(folder: Path) -> None:
    rows = "".join(f'{n},"a ""quoted"", é{n}",{n / 4},2024-01-{n + 1:02d}\n' for n in range(12))
    (folder / "a.csv").write_text("id,text,score,day\n" + rows, encoding="utf-8")


def write_jsonl(folder: Path) -> None:
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")


def write_json(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps(ROWS, indent=1), encoding="utf-8")


def write_parquet(folder: Path) -> None:
    pa.parquet.write_table(TABLE, folder / "a.parquet", row_group_size=5)


def write_arrow(folder: Path) -> None:
    """Write what `save_to_disk` of Hugging Face's datasets writes."""
    with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=5)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))


def write_npy(folder: Path) -> None:
    np.save(folder / "a.npy", np.arange(60, dtype=np.float32).reshape(12, 5))


def write_npz(folder: Path) -> None:
    np.savez_compressed(folder / "a.npz", x=np.arange(60, dtype=np.float32).reshape(12, 5), y=np.arange(12))


def write_tar(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for n in range(6):
            for ending, data in (("cls", b"%d" % n), ("json", b'{"a": %d}' % n), ("txt", f"é{n}".encode()), ("bin", b"\0")):
                member = tarfile.TarInfo(f"folder/{n:03d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_images(folder: Path) -> None:
    image, exif = Image.fromarray(PIXELS), Image.Exif()
    exif[0x0112] = 6
    frames: dict[str, Any] = {"save_all": True, "append_images": [image.rotate(90)]}
    (folder / "cls").mkdir()
    for name in ("avif", "bmp", "gif", "jp2", "png", "ppm", "tif", "webp"):
        image.save(folder / "cls" / f"plain.{name}")
    image.save(folder / "cls" / "turned.jpg", exif=exif)
    image.save(folder / "cls" / "progressive.jpg", progressive=True)
    image.convert("CMYK").save(folder / "cls" / "cmyk.jpg")
    image.convert("CMYK").save(folder / "cls" / "cmyk.tif", compression="tiff_lzw")
    image.convert("P").save(folder / "cls" / "palette.png", transparency=3)
    image.save(folder / "cls" / "frames.webp", **frames)
    image.save(folder / "cls" / "frames.gif", **frames)
    Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257).save(folder / "cls" / "deep.png")
    Image.fromarray(PIXELS[..., 0] / np.float32(255)).save(folder / "cls" / "float.tif")
    Image.fromarray(np.dstack([PIXELS, PIXELS[..., 0]])).save(folder / "cls" / "alpha.png")


def write_sound(folder: Path) -> None:
    (folder / "cls").mkdir()
    for kind, subtype, name in (
        ("WAV", "PCM_16", "16.wav"),
        ("WAV", "IMA_ADPCM", "adpcm.wav"),
        ("WAVEX", "FLOAT", "float.wav"),
        ("WAV", "PCM_24", "24.wav"),
        ("AIFF", "PCM_16", "16.aif"),
        ("FLAC", "PCM_16", "16.flac"),
        ("OGG", "VORBIS", "vorbis.ogg"),
        ("OGG", "OPUS", "opus.ogg"),
        ("MP3", "MPEG_LAYER_III", "3.mp3"),
    ):
        soundfile.write(folder / "cls" / name, WAVE, 16_000, format=kind, subtype=subtype)


def write_mds_folder(folder: Path) -> None:
    write_mds(folder / "mds", [mds_samples(range(4))])


def write_mds_packed(folder: Path) -> None:
    write_mds(folder / "mds", [mds_samples(range(4))], "zstd:3")


def write_litdata_folder(folder: Path) -> None:
    items = [
        litdata_item(f"é{n}".encode(), struct.pack("<q", n), u32(4, 2, 1, 3) + bytes([n, 1, 2]), bytes(8 * n))
        for n in range(4)
    ]
    write_litdata(folder / "lit", ["str", "int", "numpy", "no_header_tensor:2"], ["text", "n", "array", "tokens"], [items])


def write_pictures(folder: Path) -> Path:
    """Write the images that labels describe, and return the folder for the labels."""
    (folder / "img").mkdir()
    (folder / "lab").mkdir()
    for n in range(3):
        Image.fromarray(PIXELS.repeat(4, axis=0).repeat(4, axis=1)).save(folder / "img" / f"p{n}.jpg")
    return folder / "lab"


def write_yolo(folder: Path) -> None:
    labels = write_pictures(folder)
    for n in range(3):
        (labels / f"p{n}.txt").write_text(f"{n % 2} 0.5 0.5 0.25 0.5\n1 0.1 0.1 0.3 0.1 0.3 0.4\n")
    (labels / "data.yaml").write_text("names:\n  0: cat\n  1: dog\n")


def write_voc(folder: Path) -> None:
    labels = write_pictures(folder)
    for n in range(3):
        box = "<bndbox><xmin>3</xmin><ymin>4</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>"
        (labels / f"p{n}.xml").write_text(
            f"<annotation><filename>p{n}.jpg</filename><size><width>64</width><height>48</height><depth>3</depth></size>"
            f"<object><name>cat</name><difficult>0</difficult>{box}</object></annotation>"
        )


def write_coco(folder: Path) -> None:
    labels = write_pictures(folder)
    box = {"category_id": 1, "bbox": [3, 4, 20, 10], "area": 200, "iscrowd": 0}
    content = {
        "images": [{"id": n, "file_name": f"p{n}.jpg", "width": 64, "height": 48} for n in range(3)],
        "annotations": [{"id": n, "image_id": n, **box} for n in range(3)],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (labels / "instances.json").write_text(json.dumps(content))


def write_icdar(folder: Path) -> None:
    labels = write_pictures(folder)
    for n in range(3):
        (labels / f"gt_p{n}.txt").write_text("3,4,30,4,30,20,3,20,Hello\n5,25,40,25,40,40,5,40,###\n", encoding="utf-8")


def write_coco_text(folder: Path) -> None:
    labels = write_pictures(folder)
    outline = {"mask": [3, 4, 30, 4, 30, 20, 3, 20], "bbox": [3, 4, 27, 16], "legibility": "legible", "utf8_string": "Hi"}
    content = {
        "imgs": {str(n): {"id": n, "file_name": f"p{n}.jpg", "width": 64, "height": 48, "set": "train"} for n in range(3)},
        "anns": {str(n): {"id": n, "image_id": n, "class": "machine printed", **outline} for n in range(3)},
    }
    (labels / "text.json").write_text(json.dumps(content))


def write_cube(kind: str, folder: Path) -> None:
    """Write a small field on a grid, and a packed one."""
    values = np.arange(4 * 5 * 6, dtype="f4").reshape(4, 5, 6)
    dims = ("time", "lat", "lon")
    data = xarray.Dataset(
        {"t": (dims, values, {"units": "K"}), "p": (dims, values, {"units": "Pa"})},
        coords={
            "time": ("time", np.arange(4), {"units": "hours since 2001-01-01"}),
            "lat": ("lat", np.linspace(60, -60, 5), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(6) * 60.0, {"units": "degrees_east"}),
        },
    )
    packing = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 60.0, "_FillValue": -32768}
    chunks = {"zlib": True, "shuffle": True, "fletcher32": True, "chunksizes": (2, 5, 6)}
    if kind == "zarr":
        data.to_zarr(folder / "t.zarr", zarr_format=3, consolidated=False, encoding={"p": {**packing, "chunks": (2, 5, 6)}})
    elif kind == "netcdf3":
        data.to_netcdf(folder / "t.nc", format="NETCDF3_CLASSIC", encoding={"p": packing})
    else:
        data.to_netcdf(folder / "t.nc", engine="netcdf4", encoding={"p": {**packing, **chunks}})


STORES: dict[str, Callable[[Path], None]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "json": write_json,
    "parquet": write_parquet,
    "huggingface": write_arrow,
    "npy": write_npy,
    "npz": write_npz,
    "webdataset": write_tar,
    "images": write_images,
    "sound": write_sound,
    "mds": write_mds_folder,
    "mds_packed": write_mds_packed,
    "litdata": write_litdata_folder,
}
"""Sources that are converted to stores."""
BOXES: dict[str, Callable[[Path], None]] = {"yolo": write_yolo, "voc": write_voc, "coco": write_coco}
"""Images with labels for object detection."""
OUTLINES: dict[str, Callable[[Path], None]] = {"icdar": write_icdar, "coco_text": write_coco_text}
"""Images with labels for text detection."""
CUBES: dict[str, Callable[[Path], None]] = {kind: partial(write_cube, kind) for kind in ("netcdf3", "netcdf4", "zarr")}
"""Gridded data."""
