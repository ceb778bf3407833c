"""Target maps equal those of the official code pixel by pixel, and workers compile nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

cv2 = pytest.importorskip("cv2")
pyclipper = pytest.importorskip("pyclipper")
pytest.importorskip("numba")
shapely = pytest.importorskip("shapely")

from benchmarks.recipes import maps as benchmark  # noqa: E402  after what decides whether it can be imported
from benchmarks.recipes.maps import text_lines  # noqa: E402
from hasten.core.errors import DataError, JobError, MachineError  # noqa: E402
from hasten.recipes.ocr.maps import Maps, MapSettings, PolygonArray, make_maps  # noqa: E402
from hasten.recipes.ocr.maps.kernels_dilate import dilate  # noqa: E402
from hasten.recipes.ocr.maps.targets import measured  # noqa: E402
from hasten.recipes.ocr.naive import naive_maps  # noqa: E402

Shapes = list[npt.NDArray[np.float32]]
# The first call compiles, which takes seconds; Hypothesis must not count it as a slow example.
many = settings(max_examples=150, deadline=None)
SQUARE = [[20, 20], [60, 20], [60, 60], [20, 60]]
DUMBBELL = [
    [10, 10], [60, 10], [60, 33], [120, 33], [120, 10], [170, 10],
    [170, 60], [120, 60], [120, 37], [60, 37], [60, 60], [10, 60],
]  # fmt: skip
THREAD = [[10, 10.2], [110, 10.2], [110, 10.8], [10, 10.8]]
"""Lies between two rows of pixels, so nothing remains after rounding to integers."""


def same(shapes: Shapes, ignored: list[bool], size: tuple[int, int], chosen: MapSettings | None = None) -> None:
    """Assert that the exact maps equal the official ones."""
    chosen = chosen or MapSettings()
    polygons = PolygonArray.from_list(shapes, ignored)
    made, official = make_maps(polygons, size, chosen), naive_maps(polygons, size, chosen)
    for name in ("shrink", "shrink_mask", "thresh_mask"):
        assert np.array_equal(getattr(made, name), getattr(official, name)), name
    assert np.abs(made.thresh - official.thresh).max() <= 1e-6


def stars(seed: int, size: tuple[int, int]) -> Shapes:
    """Return polygons with 3 to 14 corners, convex or not, that overlap and extend beyond the image."""
    draw = np.random.default_rng(seed)
    shapes = []
    for _ in range(draw.integers(1, 9)):
        corners = draw.integers(3, 15)
        angles = np.sort(draw.uniform(0, 2 * np.pi, corners))
        reach = draw.uniform(5, 60) * draw.uniform(draw.uniform(0.2, 1), 1, corners)
        stretch = draw.uniform(0.2, 1.5, 2)
        middle = draw.uniform(-10, 10 + max(size), 2)
        shape = np.stack([np.cos(angles), np.sin(angles)], 1) * reach[:, None] * stretch + middle
        if draw.random() < 0.3:
            shape = shape.round()
        if draw.random() < 0.2:
            shape = np.repeat(shape, draw.integers(1, 3, corners), axis=0)
        shapes.append((shape if draw.random() < 0.5 else shape[::-1]).astype(np.float32))
    return shapes


def box(draw: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return a rotated box of any aspect ratio, at whole, half or arbitrary pixels."""
    width, height = draw.uniform(4, 120), draw.uniform(4, 60)
    angle = draw.choice([0.0, np.pi / 4, draw.uniform(0, np.pi)])
    corners = np.array([[-width, -height], [width, -height], [width, height], [-width, height]]) / 2
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    turned = corners @ turn + draw.uniform(20, 140, 2)
    step = draw.choice([1.0, 0.5, 1e-4])
    return np.asarray(np.round(turned / step) * step, np.float32)


@many
@given(seed=st.integers(0, 2**32 - 1))
def test_exact_maps_of_boxes_are_the_official_ones(seed: int) -> None:
    draw = np.random.default_rng(seed)
    shapes = [box(draw) for _ in range(draw.integers(1, 12))]
    same(shapes, (draw.random(len(shapes)) < 0.2).tolist(), (160, 144))


@many
@given(seed=st.integers(0, 2**32 - 1))
def test_exact_maps_of_any_polygons_are_the_official_ones(seed: int) -> None:
    draw = np.random.default_rng(seed + 1)
    shapes = stars(seed, (96, 128))
    chosen = MapSettings(
        shrink_ratio=draw.uniform(0.1, 0.9), thresh_min=0.2, thresh_max=0.9, min_text_size=draw.choice([0.0, 8.0])
    )
    same(shapes, (draw.random(len(shapes)) < 0.2).tolist(), (96, 128), chosen)


@pytest.mark.parametrize("corners", [4, 12])
def test_exact_maps_of_pages_are_the_official_ones(corners: int) -> None:
    for seed in range(3):
        shapes = text_lines(60, corners, seed)
        same(shapes, [number % 9 == 0 for number in range(60)], (640, 640))


@many
@given(seed=st.integers(0, 2**32 - 1))
def test_distances_are_those_of_shapely_to_the_last_bit(seed: int) -> None:
    shapes = stars(seed, (200, 200))
    *_, distances = measured(PolygonArray.from_list(shapes), MapSettings(min_text_size=0))
    for shape, distance in zip(shapes, distances, strict=True):
        polygon = shapely.Polygon(shape.astype(np.float64))
        assert distance == (polygon.area * (1 - np.power(0.4, 2)) / polygon.length if polygon.area >= 1 else 0)


def test_most_boxes_are_dilated_without_clipper_and_give_its_polygon() -> None:
    draw = np.random.default_rng(3)
    polygons = PolygonArray.from_list([box(draw) for _ in range(400)])
    _, offsets, distances = measured(polygons, MapSettings())
    ring_offsets, boxes = np.empty(len(offsets), np.int64), np.zeros((len(polygons), 4), np.int64)
    rings = dilate(polygons.points.astype(np.int32), offsets, distances, ring_offsets, boxes)
    own = 0
    for number, distance in enumerate(distances):
        ring = rings[ring_offsets[number] : ring_offsets[number + 1]].tolist()
        if not ring:
            continue
        own += 1
        clipper = pyclipper.PyclipperOffset()
        clipper.AddPath(polygons.polygon(number).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        (wanted,) = clipper.Execute(distance)
        start = ring.index(wanted[0])
        assert ring[start:] + ring[:start] == wanted
        assert boxes[number].tolist() == [*np.min(ring, axis=0), *np.max(ring, axis=0)]
    assert own > 0.7 * np.count_nonzero(distances)


def test_of_text_that_falls_apart_all_parts_are_drawn() -> None:
    made = maps([DUMBBELL], (80, 180))
    assert cv2.connectedComponents(made.shrink)[0] == 3, "the background and two parts"
    assert made.shrink[35, 35] == made.shrink[35, 145] == 1
    assert made.shrink_mask.all()


def test_text_that_vanishes_is_masked_and_leaves_no_other_trace() -> None:
    chosen = MapSettings(min_text_size=0)
    made = make_maps(PolygonArray.from_list([THREAD]), (40, 128), chosen)
    assert not made.shrink.any()
    assert not made.thresh_mask.any()
    assert np.allclose(made.thresh, 0.3)
    assert np.argwhere(made.shrink_mask == 0).tolist() == [[10, x] for x in range(10, 111)]


@pytest.mark.parametrize(
    ("polygon", "ignored"),
    [
        (SQUARE, True),
        ([[20, 20], [60, 20], [60, 27], [20, 27]], False),
        ([[20, 20], [60, 20], [60, 20.01], [20, 20.01]], False),
    ],
    ids=["ignored", "small", "without area"],
)
def test_what_is_not_trained_is_masked_and_leaves_no_other_trace(polygon: list[list[float]], ignored: bool) -> None:
    chosen = MapSettings(min_text_size=8 if polygon[2][1] == 27 else 0)
    made = make_maps(PolygonArray.from_list([polygon], [ignored]), (80, 80), chosen)
    assert not made.shrink.any()
    assert not made.thresh_mask.any()
    assert np.allclose(made.thresh, 0.3)
    assert made.shrink_mask[20, 20] == made.shrink_mask[20, 60] == 0
    assert made.shrink_mask[19].all()
    assert made.shrink_mask[70].all()


def test_maps_of_a_square_are_what_the_paper_says() -> None:
    made = maps([SQUARE], (80, 80))  # A = 1600, L = 160, D = 8.4
    assert np.flatnonzero(made.shrink[40]).tolist() == list(range(28, 53))
    assert np.flatnonzero(made.thresh_mask[40]).tolist() == list(range(12, 69))
    assert made.thresh[40, 20] == pytest.approx(0.7)
    assert made.thresh[40, 16] == made.thresh[40, 24] == pytest.approx(0.7 - 0.4 * 4 / 8.4)
    assert made.thresh[40, 40] == pytest.approx(0.3)
    assert made.thresh[5, 5] == pytest.approx(0.3)


def test_no_polygon_gives_empty_maps() -> None:
    made = maps([], (12, 7))
    assert made.thresh.shape == (12, 7)
    assert not made.shrink.any()
    assert not made.thresh_mask.any()
    assert made.shrink_mask.all()


def test_what_lies_outside_the_image_is_cut_off() -> None:
    shapes = [np.array(SQUARE) + move for move in ((-200, 0), (40, 40), (-40, -30), (0, 300), (-8, 0))]
    large = maps([shape + 400 for shape in shapes], (800, 800))
    small = maps(shapes, (80, 80))
    for name in ("shrink", "shrink_mask", "thresh", "thresh_mask"):
        assert np.allclose(getattr(small, name), getattr(large, name)[400:480, 400:480], atol=1e-6), name


def test_what_is_passed_may_be_read_only_and_is_not_changed() -> None:
    polygons = PolygonArray.from_list([SQUARE, DUMBBELL], [False, True])
    before = polygons.points.copy(), polygons.offsets.copy(), polygons.ignored.copy()
    for array in (polygons.points, polygons.offsets, polygons.ignored):
        array.setflags(write=False)
    make_maps(polygons, (80, 180))
    assert all(map(np.array_equal, before, (polygons.points, polygons.offsets, polygons.ignored)))


@pytest.mark.parametrize(
    ("polygons", "ignored", "message"),
    [
        ([[[0, 0], [1, 1]]], None, "polygon 0 has less than three corners"),
        ([SQUARE, [[0, 0, 0]]], None, "polygon 1 must be"),
        ([SQUARE, [[0, 0], [1, 1], [np.nan, 2]]], None, "not finite"),
        ([SQUARE, [[0, 0], [1, 1], [1e9, 2]]], None, "not finite or beyond"),
        ([SQUARE], [True, False], "polygons, not"),
    ],
)
def test_polygons_that_cannot_be_drawn_are_refused(polygons: list[object], ignored: list[bool] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        PolygonArray.from_list(polygons, ignored)  # type: ignore[arg-type]


def test_polygons_come_out_as_they_went_in() -> None:
    polygons = PolygonArray.from_list([SQUARE, DUMBBELL], [True, False])
    assert len(polygons) == 2
    assert polygons.polygon(0).tolist() == SQUARE
    assert polygons.polygon(1).tolist() == DUMBBELL
    assert polygons.ignored.tolist() == [True, False]
    assert len(PolygonArray.from_list([])) == 0


@pytest.mark.parametrize(
    "setting",
    [{"shrink_ratio": 1.0}, {"shrink_ratio": 0.0}, {"thresh_min": 0.7}, {"min_text_size": -1}],
)
def test_settings_out_of_range_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(JobError, match=next(iter(setting)).split("_")[0]):
        MapSettings(**setting)  # type: ignore[arg-type]


def test_a_image_without_pixels_is_refused() -> None:
    with pytest.raises(DataError, match="at least one pixel"):
        maps([SQUARE], (0, 10))


def test_the_benchmark_measures_every_way_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "PICTURES", 1)
    found = benchmark.run(1)
    ways = {"official", "exact"}
    for case in found["cases"].values():
        assert {way: len(times) for way, times in case["raw_ms"].items()} == dict.fromkeys(ways, 1)
    assert found["goals"].keys() == benchmark.GOALS.keys()
    assert all(goal["met"] is (goal["seen"] >= goal["goal"]) for goal in found["goals"].values())


WORKER = """
import os, sys
from numba.core import event
from hasten.recipes.ocr.maps import MapSettings, PolygonArray, make_maps
from hasten.recipes.ocr.maps.targets import warm

if sys.argv[1] == "warm":
    warm()
with event.install_recorder("numba:compile") as recorder:
    pid = os.fork()
    if pid == 0:
        several = [[[5, 5], [40, 5], [40, 40], [5, 40]], [[1.5, 2], [30, 3], [31, 20.5], [12, 25], [2, 20]]]
        polygons = PolygonArray.from_list(several, [False, True])
        polygons.points.setflags(write=False)
        for given in (polygons, PolygonArray.from_list([]), PolygonArray.from_list(several[:1])):
            make_maps(given, (51, 61), MapSettings(min_text_size=3))
        os._exit(3 if recorder.buffer else 0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("start", "code"), [("warm", "0"), pytest.param("cold", "3", marks=pytest.mark.long)])
def test_a_forked_worker_compiles_nothing_after_warm_and_would_without(tmp_path: Path, start: str, code: str) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", WORKER, start]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, code), done.stderr[-3000:]


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("hasten.recipes.needed.import_module", missing)
    with pytest.raises(MachineError, match=r"package cv2, which is not installed: pip install 'hasten\[recipes\]'"):
        maps([SQUARE], (80, 80))


def maps(polygons: Sequence[npt.ArrayLike], size: tuple[int, int]) -> Maps:
    return make_maps(PolygonArray.from_list(polygons), size)
