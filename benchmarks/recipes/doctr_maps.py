"""Compare docTR's unmodified target maps with Hasten's.

docTR needs torchvision, which would install another torch, but its target code does not. The one file that contains it is
loaded from the installed package, with stubs for imports that it never uses.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.recipes.maps import PICTURES, SIZE, in_turns, text_lines
from hasten.recipes.ocr.maps import PolygonArray, make_maps

_HOME = "doctr.models.detection.differentiable_binarization"
NUM_LINES = 60


def doctr_maker() -> tuple[Any, str] | None:
    """Return docTR's target code and its version; None if the package is not installed."""
    try:
        package = distribution("python-doctr")
    except PackageNotFoundError:
        return None
    path = package.locate_file(f"{_HOME.replace('.', '/')}/base.py")
    for name, attribute in (("doctr.utils", "order_points"), ("doctr.models.detection.core", "DetectionPostProcessor")):
        place = ModuleType(name)
        setattr(place, attribute, object)
        sys.modules.setdefault(name, place)
    spec = importlib.util.spec_from_file_location(f"{_HOME}.base", str(path))
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)["_DBNet"](), package.version


def run(rounds: int) -> dict[str, Any] | None:
    """Measure docTR's target code and the exact kernel on the same quads, in turns; None if docTR is not installed."""
    found = doctr_maker()
    if found is None:
        print("docTR is not installed: make bench-recipes installs the parts needed", flush=True)
        return None
    maker, version = found
    pages = [text_lines(NUM_LINES, 4, seed) for seed in range(PICTURES)]
    shares = [np.clip(np.stack(lines) / np.asarray(SIZE[::-1], np.float32), 0, 1).astype(np.float32) for lines in pages]
    arrays = [PolygonArray.from_list(list(share * np.asarray(SIZE[::-1], np.float32))) for share in shares]
    raw = in_turns(
        {
            "doctr": lambda: [maker.build_target([{"words": share}], (1, *SIZE)) for share in shares],
            "exact": lambda: [make_maps(array, SIZE) for array in arrays],
        },
        rounds,
    )
    made = [maker.build_target([{"words": share}], (1, *SIZE))[0][0, 0] > 0 for share in shares]
    ours = [make_maps(array, SIZE).shrink > 0 for array in arrays]
    differs = sum(int((one != other).sum()) for one, other in zip(made, ours, strict=True)) / sum(map(np.sum, ours))
    ratios = [one / other for one, other in zip(raw["doctr"], raw["exact"], strict=True)]
    medians = {way: float(np.median(times)) for way, times in raw.items()}
    print(
        f"docTR {version}: {medians['doctr']:.1f} ms per image, exact {np.median(ratios):.1f}x; {differs:.1%} of shrunk "
        f"texts differ, because docTR rounds their corners to pixels",
        flush=True,
    )
    return {
        "version": version,
        "raw_ms": raw,
        "median_ms": medians,
        "exact_over_doctr": float(np.median(ratios)),
        "shrink_differs_frac": float(differs),
    }
