"""The fifteen wishes of the detector's owner: what delivers each, how it is switched, and what a tuning saw of it.

A wish is delivered by techniques of the catalogue, by attributes of the job, or by both. A technique is on where the plan
(`hasten.toml`) has its table, `[optimizations.NAME]`, and off where it has none: `hasten tune` decides by measurement, and
a plan that was edited is obeyed. An attribute is set in the job's class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hasten.optimizations import catalogue

FORM = "job_form"
"""The technique that tries the real form of a job in place of the naive one."""

State = Literal["applied", "tried", "refused", "failed", "not tried", "of the job"]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One wish.

    Attributes:
        name: As its owner called it.
        words: What it means.
        techniques: Names in the catalogue that deliver it, the usual one first.
        attributes: Of the job's class, that deliver or switch it.
        command: A command of its own; empty for none.
        of_the_form: Whether the real form of the job has it and the naive one has not; then the gain of the whole form is
            told beside it.
    """

    name: str
    words: str
    techniques: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    command: str = ""
    of_the_form: bool = False

    @property
    def switch(self) -> str:
        """How it is switched on and off, in words."""
        plan = f"`--only` or `--without` {', '.join(self.techniques)}" if self.techniques else ""
        job = f"job: {', '.join(self.attributes)}" if self.attributes else ""
        return "; ".join(part for part in (plan, job, self.command) if part)

    @property
    def hoped(self) -> str:
        """What the cards of its techniques hope for; empty where none names a figure."""
        kinds = catalogue()
        return "; ".join(f"{name}: {kinds[name].card.hoped_gain}" for name in self.techniques if kinds[name].card.hoped_gain)


WISHES: tuple[Wish, ...] = (
    Wish(
        name="dynamic workers",
        words="as many loader workers as the cores, the quota and the waiting of this machine ask for",
        techniques=("loader_workers", "loader_threads"),
    ),
    Wish(
        name="prefetching",
        words="batches read ahead of the model, and copied ahead to a GPU",
        techniques=("loader_workers", "loader_threads", "device_prefetch"),
    ),
    Wish(
        name="mixed precision",
        words="16-bit products where the numbers allow it",
        techniques=("precision", "module_precision"),
    ),
    Wish(
        name="gradient accumulation",
        words="one update from several batches",
        techniques=("microbatch", "merged_microbatches"),
        attributes=("accumulation",),
    ),
    Wish(name="compile", words="the model compiled", techniques=("compile", "validation_compile")),
    Wish(name="channels_last", words="pictures and weights laid out channels-last", techniques=("channels_last",)),
    Wish(
        name="light training predictions",
        words="no boxes are made in training: the loss reads the maps",
        attributes=("light_predictions",),
        of_the_form=True,
    ),
    Wish(name="clipping", words="the norm of the gradients kept below a bound", attributes=("clip_norm",)),
    Wish(
        name="efficient zero_grad",
        words="gradients freed, not filled with zeros",
        techniques=("zero_grad_to_none",),
        attributes=("zero_grad_to_none",),
    ),
    Wish(
        name="fewer progress updates",
        words="the host reads the loss now and then, not at each update",
        techniques=("metric_reading",),
        attributes=("read_every",),
    ),
    Wish(
        name="asynchronous progress",
        words="reports and checkpoints written beside the training",
        techniques=("async_logging", "background_checkpoint"),
    ),
    Wish(
        name="CUDA settings",
        words="kernels by timing, fast arithmetic of float32 products, graphs, page-locked copies",
        techniques=("cudnn_benchmark", "matmul_precision", "cuda_graphs", "pinned_memory"),
    ),
    Wish(
        name="CPU threads",
        words="as many threads as pay",
        techniques=("cpu_threads",),
    ),
    Wish(
        name="preprocessing cache",
        words="decoding and resizing done once",
        techniques=("sample_cache", "sample_store", "converted_dataset"),
    ),
    Wish(
        name="batch-size search",
        words="how many samples at once, and how many an update",
        techniques=("optimizer_batch", "validation_batch"),
        attributes=("batch_size",),
        command="hasten batch TARGET",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What a tuning saw of one technique.

    Attributes:
        technique: Its name.
        settings: Those of the rung that tells most.
        outcome: As the ladder has it: applied, refused, failed, undecided or pruned.
        reason: Why, in words.
        ratio: Measured speed with it over speed without; None where it was not measured.
        low: The lower end of the ratio's interval.
        high: The upper end.
    """

    technique: str
    settings: Mapping[str, Any]
    outcome: str
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def brought(self) -> str:
        """The measured gain, such as `1.37x (1.18 to 1.60)`; empty where there is none."""
        if self.ratio is None or self.low is None or self.high is None:
            return ""
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One wish in a report.

    Attributes:
        wish: The wish.
        state: `applied` where one of its techniques is in the plan; `tried` where one was measured and none is; `of the
            job` where attributes alone deliver it; else `failed`, `refused` (by facts, unmeasured) or `not tried`.
        tried: Each technique that the tuning speaks of, the one that tells most first; for a part of the real form, the
            trial of that form.
    """

    wish: Wish
    state: State
    tried: tuple[Tried, ...]

    @property
    def words(self) -> str:
        """What came of it, in a sentence."""
        if not self.tried:
            return "set in the job" if self.state == "of the job" else "this tuning does not speak of it"
        best = self.tried[0]
        part = "part of another form of the job, which was tried as a whole; " if self.state == "of the job" else ""
        return f"{part}{best.technique}: {best.reason}"


def report(evidence: Mapping[str, Any]) -> list[Row]:
    """Say of each wish what a tuning tried and what it brought.

    Args:
        evidence: As in `evidence.json`: its `rungs` are read and nothing else.
    """
    rungs: dict[str, list[Mapping[str, Any]]] = {}
    for rung in evidence["rungs"]:
        rungs.setdefault(rung["name"], []).append(rung)
    return [_row(wish, rungs) for wish in WISHES]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table: the wish, what came of it, what it brought, what was hoped for, how it is switched."""
    lines = ["| wish | state | what came of it | measured | hoped for | switch |", "|---|---|---|---|---|---|"]
    for row in rows:
        measured = row.tried[0].brought if row.tried else ""
        cells = (row.wish.name, row.state, row.words, measured or "-", row.wish.hoped or "-", row.wish.switch)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _row(wish: Wish, rungs: Mapping[str, list[Mapping[str, Any]]]) -> Row:
    tried = [_tried(max(rungs[name], key=_telling)) for name in wish.techniques if name in rungs]
    tried.sort(key=lambda one: _ORDER.index(_state_of(one)))
    if not wish.techniques:
        form = [_tried(max(rungs[FORM], key=_telling))] if wish.of_the_form and FORM in rungs else []
        return Row(wish=wish, state="of the job", tried=tuple(form))
    return Row(wish=wish, state=_state_of(tried[0]) if tried else "not tried", tried=tuple(tried))


_ORDER: tuple[State, ...] = ("applied", "tried", "failed", "not tried", "refused", "of the job")


def _state_of(tried: Tried) -> State:
    if tried.outcome == "applied":
        return "applied"
    if tried.ratio is not None:
        return "tried"
    return "failed" if tried.outcome == "failed" else "refused" if tried.outcome == "refused" else "not tried"


def _telling(rung: Mapping[str, Any]) -> tuple[bool, bool, float]:
    """Of several settings of one technique, the one that was kept tells most, then the fastest that was measured."""
    ratio = (rung.get("comparison") or {}).get("ratio")
    return rung["outcome"] == "applied", ratio is not None, ratio or 0.0


def _tried(rung: Mapping[str, Any]) -> Tried:
    comparison = rung.get("comparison") or {}
    return Tried(
        technique=rung["name"],
        settings=rung["settings"],
        outcome=rung["outcome"],
        reason=rung["reason"],
        ratio=comparison.get("ratio"),
        low=comparison.get("low"),
        high=comparison.get("high"),
    )
