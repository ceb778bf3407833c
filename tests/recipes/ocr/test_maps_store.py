"""Maps come out of the cache as they went in, within 8 bits; keys hold all they depend on; runs ahead can be stopped."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for package in ("cv2", "pyclipper", "numba", "shapely"):
    pytest.importorskip(package)

from hasten.core.errors import DataError, MachineError  # noqa: E402  after what decides whether it can be imported
from hasten.recipes.ocr.maps import Maps, MapSettings, PolygonArray, make_maps  # noqa: E402
from hasten.recipes.ocr.maps.ahead import Processes, Progress, RayRunner, make_ahead  # noqa: E402
from hasten.recipes.ocr.maps.packed import pack, unpack  # noqa: E402
from hasten.recipes.ocr.maps.ready import compiled, warm  # noqa: E402
from hasten.recipes.ocr.maps.store import MapCache, content_of, map_key  # noqa: E402
from hasten.recipes.ocr.maps.task import Item, Packed, Task, make_task  # noqa: E402

SIZE = (61, 83)
SETTINGS = MapSettings()
POLYGONS = PolygonArray.from_list(
    [[[5, 5], [60, 9], [58, 40], [4, 33]], [[50, 20], [80, 20], [80, 50], [50, 50]]], [False, True]
)


def items(count: int) -> list[Item]:
    """Pictures of one polygon each."""
    return [
        (f"picture {number}", PolygonArray.from_list([[[5, 5], [40 + number, 5], [40 + number, 40], [5, 40]]]), SIZE)
        for number in range(count)
    ]


def same_masks(one: Maps, other: Maps) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("shrink", "shrink_mask", "thresh_mask"))


@pytest.mark.parametrize("chosen", [SETTINGS, MapSettings(thresh_min=0.0, thresh_max=1.0, kernel="fast")])
def test_packed_maps_keep_their_masks_and_thresholds_within_half_a_step(chosen: MapSettings) -> None:
    maps = make_maps(POLYGONS, SIZE, chosen)
    found = unpack(pack(maps, chosen))
    assert found is not None
    assert same_masks(maps, found)
    assert found.thresh.dtype == np.float32
    assert np.abs(found.thresh - maps.thresh).max() <= (chosen.thresh_max - chosen.thresh_min) / 510 + 1e-6
    assert found.thresh.min() == np.float32(chosen.thresh_min)


def test_damaged_and_cut_bytes_are_no_maps() -> None:
    data = pack(make_maps(POLYGONS, SIZE), SETTINGS)
    assert unpack(data) is not None
    for cut in (0, 3, 20, 100, len(data) - 1):
        assert unpack(data[:cut]) is None
    for at in (0, 5, 12, 30, len(data) - 1):
        assert unpack(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def test_the_second_visit_finds_what_the_first_one_made(tmp_path: Path) -> None:
    cache = MapCache(tmp_path, 10**7)
    key = map_key("a", content_of(POLYGONS), None, SIZE, SETTINGS)
    first, second = (cache.get_or_make(key, POLYGONS, SIZE, SETTINGS) for _ in range(2))
    assert same_masks(first, second)
    assert np.array_equal(first.thresh, second.thresh)
    assert (cache.stats.hits, cache.stats.misses, cache.hit_frac, len(cache)) == (1, 1, 0.5, 1)
    assert MapCache(tmp_path, 10**7).hit_frac is None, "nothing was asked of this one"
    assert 0 < cache.num_bytes < 2 * SIZE[0] * SIZE[1]
    second.shrink[:] = 7  # arrays of its own: the cache's are untouched
    third = cache.get(key)
    assert third is not None
    assert same_masks(first, third)


def test_a_key_changes_with_all_that_maps_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "picture": "a", "content": content_of(POLYGONS), "transform": {"scale": 0.5}, "size": SIZE, "settings": SETTINGS
    }  # fmt: skip
    joined = PolygonArray(POLYGONS.points, np.array([0, 3, 8], np.int32), POLYGONS.ignored)
    trained = PolygonArray(POLYGONS.points, POLYGONS.offsets, np.zeros(2, np.bool_))
    changes: list[dict[str, Any]] = [
        {"shrink_ratio": 0.5}, {"thresh_min": 0.2}, {"thresh_max": 0.8}, {"min_text_size": 3.0}, {"kernel": "fast"}
    ]  # fmt: skip
    others: list[dict[str, Any]] = [
        {"picture": "b"},
        {"content": content_of(POLYGONS, b"pixels")},
        {"content": content_of(joined)},
        {"content": content_of(trained)},
        {"transform": {"scale": 0.25}},
        {"size": SIZE[::-1]},
        *({"settings": replace(SETTINGS, **change)} for change in changes),
    ]
    keys = [map_key(**{**given, **other}) for other in [{}, *others]]
    monkeypatch.setattr("hasten.recipes.ocr.maps.store.code_version", lambda: "another")
    keys.append(map_key(**given))
    assert len(set(keys)) == len(others) + 2


def test_when_the_cache_is_full_maps_are_made_and_not_kept(tmp_path: Path) -> None:
    size = len(pack(make_maps(POLYGONS, SIZE), SETTINGS))
    cache = MapCache(tmp_path, int(2.5 * size))
    for name in "abc":
        assert cache.get_or_make(name, POLYGONS, SIZE, SETTINGS).shrink.any()
    assert (len(cache), cache.stats.refused) == (2, 1)
    assert cache.num_bytes <= 2.5 * size


def test_a_write_that_was_torn_counts_as_missing(tmp_path: Path) -> None:
    cache = MapCache(tmp_path, 10**7)
    cache.get_or_make("a", POLYGONS, SIZE, SETTINGS)
    cache.close()
    written = (tmp_path / "data").read_bytes()
    (tmp_path / "data").write_bytes(written[:-5] + bytes(byte ^ 255 for byte in written[-5:]))
    assert cache.missing(["a"]) == {"a"}
    assert cache.get("a") is None
    assert cache.stats.damaged == 1
    assert cache.get_or_make("a", POLYGONS, SIZE, SETTINGS).shrink.any()
    assert cache.get("a") is not None


def _write(folder: Path, names: str) -> None:
    with_all = MapCache(folder, 10**8)
    for name in names:
        with_all.get_or_make(name, POLYGONS, SIZE, SETTINGS)


@pytest.mark.slow
def test_several_processes_write_into_one_cache(tmp_path: Path) -> None:
    warm()
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, names)) for names in ("abcdefgh", "efghijkl", "ijklmnop")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    cache, wanted = MapCache(tmp_path, 10**8), make_maps(POLYGONS, SIZE)
    found = [cache.get(name) for name in "abcdefghijklmnop"]
    assert all(maps is not None and same_masks(maps, wanted) for maps in found)


class Stopped:
    """Makes a number of tasks, and then is killed."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Packed]:
        yield from map(make_task, tasks[: self.tasks])
        raise DataError("killed")


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    cache, said = MapCache(tmp_path, 10**7), list[Progress]()
    with pytest.raises(DataError, match="killed"):
        make_ahead(cache, items(10), SETTINGS, runner=Stopped(2), progress=said.append, pictures_a_task=3)
    assert [(one.num_found, one.num_made) for one in said] == [(0, 0), (0, 3), (0, 6)]
    done = make_ahead(cache, [*items(10), *items(2)], SETTINGS, runner=Processes(1), pictures_a_task=3)
    assert done == Progress(num_maps=10, num_found=6, num_made=4)
    assert make_ahead(cache, items(10), SETTINGS) == Progress(num_maps=10, num_found=10, num_made=0)
    for key, polygons, size in items(10):
        found = cache.get(key)
        assert found is not None
        assert same_masks(found, make_maps(polygons, size))


def test_a_full_cache_ends_the_run(tmp_path: Path) -> None:
    cache = MapCache(tmp_path, 5 * len(pack(make_maps(POLYGONS, SIZE), SETTINGS)) // 2)
    done = make_ahead(cache, items(10), SETTINGS, runner=Processes(1), pictures_a_task=2)
    assert done == Progress(num_maps=10, num_found=0, num_made=2, is_full=True)


@pytest.mark.slow
def test_processes_make_the_same_maps(tmp_path: Path) -> None:
    one, two = MapCache(tmp_path / "one", 10**7), MapCache(tmp_path / "two", 10**7)
    for cache, count in ((one, 1), (two, 2)):
        assert make_ahead(cache, items(9), SETTINGS, runner=Processes(count), pictures_a_task=2).num_made == 9
    for key, *_ in items(9):
        first, second = one.get(key), two.get(key)
        assert first is not None
        assert second is not None
        assert same_masks(first, second)
        assert np.array_equal(first.thresh, second.thresh)


CLUSTER = """
import sys, tempfile
from pathlib import Path
import ray
from hasten.recipes.ocr.maps import MapSettings, PolygonArray
from hasten.recipes.ocr.maps.ahead import RayRunner, make_ahead
from hasten.recipes.ocr.maps.store import MapCache

square = PolygonArray.from_list([[[5, 5], [40, 5], [40, 40], [5, 40]]])
with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
    cache = MapCache(Path(sys.argv[1]), 10**7)
    pictures = [(str(number), square, (50, 60)) for number in range(7)]
    print(make_ahead(cache, pictures, MapSettings(), runner=RayRunner(), pictures_a_task=2))
    ray.shutdown()
"""


@pytest.mark.slow
def test_a_ray_cluster_makes_the_same_maps(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        assert not os.environ.get("HASTEN_CI"), "CI must have Ray installed"
        pytest.skip("Ray is not installed: pip install 'hasten[ray]'")
    command = [sys.executable, "-c", CLUSTER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "num_found=0, num_made=7" in done.stdout
    found = MapCache(tmp_path, 10**7).get("3")
    wanted = make_maps(PolygonArray.from_list([[[5, 5], [40, 5], [40, 40], [5, 40]]]), (50, 60))
    assert found is not None
    assert same_masks(found, wanted)


WORKER = """
import os, sys
from numba.core import event
from hasten.recipes.ocr.maps import MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.maps.packed import pack, unpack
from hasten.recipes.ocr.maps.ready import compiled, warm

if sys.argv[1] == "warm":
    warm()
before = compiled()
with event.install_recorder("numba:compile") as recorder:
    pid = os.fork()
    if pid == 0:
        several = [[[5, 5], [40, 5], [40, 40], [5, 40]], [[1.5, 2], [30, 3], [31, 20.5], [12, 25], [2, 20]]]
        polygons = PolygonArray.from_list(several, [False, True])
        polygons.points.setflags(write=False)
        for kernel in ("exact", "fast"):
            for given in (polygons, PolygonArray.from_list([]), PolygonArray.from_list(several[:1])):
                settings = MapSettings(kernel=kernel, min_text_size=3)
                unpack(pack(make_maps(given, (51, 61), settings), settings))
        os._exit(0 if not recorder.buffer and compiled() == before else 3)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("start", "code"), [("warm", "0"), ("cold", "3")])
def test_a_forked_worker_compiles_nothing_after_warm_and_would_without(tmp_path: Path, start: str, code: str) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", WORKER, start]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, code), done.stderr[-3000:]


def test_warm_is_done_once() -> None:
    warm()
    before = compiled()
    warm()
    make_maps(POLYGONS, SIZE, MapSettings(kernel="fast"))
    assert compiled() == before
    assert before["kernels_exact.draw_borders"] == before["kernels_fast.draw_distances"] == 1


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("hasten.recipes.needed.import_module", missing)
    with pytest.raises(MachineError, match=r"package cv2, which is not installed: pip install 'hasten\[recipes\]'"):
        make_maps(POLYGONS, SIZE)


def test_ray_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MachineError, match="ray"):
        RayRunner()
