"""Tables of the documentation, made from benchmarks/results, so that no number is typed by hand.

`TABLES` names the tables that pages of the site take by a marker (`docs/hooks/build.py`). `python -m benchmarks.tables`
writes the two that are kept in files: the block of README.md, and the measurements that ship with the package. A benchmark
that is a folder has its tables there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import catalogue, monitor_cost, pruning_scripts, pruning_techniques
from benchmarks.checkpoints import table as checkpoint_table
from benchmarks.data_layer import table as data_layer
from benchmarks.datacube import table as datacube
from benchmarks.dialogue import table as dialogue
from benchmarks.groundtruth import table as groundtruth
from benchmarks.pipeline import queue_table, readers_table
from benchmarks.public import page as public
from benchmarks.recipes import table as recipes
from benchmarks.tables import method, monitor, size, summary, techniques, tunings

Found = Mapping[str, Any]


def _lines(name: str, table: Callable[[Any], list[str]]) -> Callable[[Found], str]:
    return lambda found: "\n".join(table(found[name]))


TABLES: Mapping[str, Callable[[Found], str]] = {
    "checkpointing": _lines("checkpointing", techniques.checkpointing),
    "checkpoints": lambda found: checkpoint_table.table(found["checkpoints"]),
    "data": lambda found: data_layer.tables(found["data"]),
    "datacube_goals": lambda found: datacube.goals(found["datacube"]),
    "datacube_regrid": lambda found: datacube.regrid(found["datacube"]),
    "detection": lambda found: recipes.detection(found["recipes"]),
    "gate": _lines("gate", method.gate),
    "gpu_only": catalogue.gpu_only,
    "groundtruth_cost": lambda found: groundtruth.cost(found["groundtruth"]),
    "groundtruth_rival": lambda found: groundtruth.rival(found["groundtruth"]),
    "groundtruth_score": lambda found: groundtruth.score(found["groundtruth"]),
    "groundtruth_scripts": lambda found: groundtruth.scripts(found["groundtruth"]),
    "dialogue_packing": lambda found: dialogue.packing(found["dialogue"]),
    "dialogue_steps": lambda found: dialogue.steps(found["dialogue"]),
    "dialogue_goals": lambda found: dialogue.goals(found["dialogue"]),
    "dialogue_ways": lambda found: dialogue.ways(found["dialogue"]),
    "identifiers": lambda found: dialogue.identifiers(found["dialogue"]),
    "in_scripts": catalogue.in_scripts,
    "size_jobs": lambda found: size.jobs(found["size"]),
    "size_two_ranks": lambda found: size.two_ranks(found["size"]),
    "size_planned": lambda found: size.planned(found["size"]),
    "alerts_found": monitor.alerts_table,
    "alerts_limits": monitor.limits_table,
    "check_example": monitor.check_example,
    "check_verdicts": monitor.check_table,
    "metrics": monitor.metrics_table,
    "monitor_cost": lambda found: monitor_cost.table(found["monitor_cost"]),
    "ocr": lambda found: recipes.ocr(found["recipes"]),
    "packing": _lines("packing", techniques.packing),
    "pipeline_kills": summary.pipeline_kills,
    "pipeline_queue": queue_table.table,
    "pipeline_readers": readers_table.table,
    "plan_example": tunings.plan_example,
    "public": lambda found: public.tables(found["public"]),
    "removed_ocr": lambda found: recipes.pruned(found["pruning_ocr"]),
    "removed_scripts": lambda found: pruning_scripts.table(found["pruning_scripts"]),
    "removed_techniques": lambda found: pruning_techniques.removed(found["pruning_techniques"]),
    "rivals": tunings.rivals,
    "search": _lines("search", method.search),
    "sinks": monitor.sinks_table,
    "summary": summary.summary,
    "techniques": _lines("techniques", techniques.table),
    "tunings": tunings.table,
}
"""Name of a marker -> the function that makes its table from all results."""
