"""The fifteen features requested for the detector: what implements each, how to switch it, and its result in a tuning.

A feature is implemented by techniques of the catalogue, by attributes of the job, or by both. A technique is on if the plan
(`hasten.toml`) has its table, `[optimizations.NAME]`, and off otherwise. `hasten tune` decides by measurement, and an edited
plan is respected. An attribute is set in the job's class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hasten.optimizations import catalogue

FORM = "job_form"
"""The technique that tries the optimized form of a job in place of the naive one."""

State = Literal["applied", "tried", "refused", "failed", "not tried", "of the job"]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One requested feature.

    Attributes:
        name: Its name in the request.
        words: Its meaning.
        techniques: Techniques of the catalogue that implement it, the usual one first.
        attributes: Attributes of the job's class that implement or switch it.
        command: A separate command; empty for none.
        of_the_form: Whether only the optimized form of the job has it; then the gain of the whole form is shown.
    """

    name: str
    words: str
    techniques: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    command: str = ""
    of_the_form: bool = False

    @property
    def switch(self) -> str:
        """Describe how to switch it on and off."""
        plan = f"`--only` or `--without` {', '.join(self.techniques)}" if self.techniques else ""
        job = f"job: {', '.join(self.attributes)}" if self.attributes else ""
        return "; ".join(part for part in (plan, job, self.command) if part)

    @property
    def hoped(self) -> str:
        """Return the claimed gains on its techniques' cards; empty if there are none."""
        kinds = catalogue()
        return "; ".join(f"{name}: {kinds[name].card.hoped_gain}" for name in self.techniques if kinds[name].card.hoped_gain)


WISHES: tuple[Wish, ...] = (
    Wish(
        name="dynamic workers",
        words="number of loader workers chosen by the cores, the CPU quota and the waiting times of this machine",
        techniques=("loader_workers", "loader_threads"),
    ),
    Wish(
        name="prefetching",
        words="batches read ahead of the model, and copied to a GPU in advance",
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
    Wish(name="channels_last", words="images and weights in channels-last memory format", techniques=("channels_last",)),
    Wish(
        name="light training predictions",
        words="no boxes are computed in training: the loss reads the maps",
        attributes=("light_predictions",),
        of_the_form=True,
    ),
    Wish(name="clipping", words="the norm of the gradients limited", attributes=("clip_norm",)),
    Wish(
        name="efficient zero_grad",
        words="gradients freed instead of filled with zeros",
        techniques=("zero_grad_to_none",),
        attributes=("zero_grad_to_none",),
    ),
    Wish(
        name="fewer progress updates",
        words="the host reads the loss occasionally, not at each update",
        techniques=("metric_reading",),
        attributes=("read_every",),
    ),
    Wish(
        name="asynchronous progress",
        words="reports and checkpoints written in parallel with training",
        techniques=("async_logging", "background_checkpoint"),
    ),
    Wish(
        name="CUDA settings",
        words="kernels chosen by timing, fast float32 products, graphs, page-locked copies",
        techniques=("cudnn_benchmark", "matmul_precision", "cuda_graphs", "pinned_memory"),
    ),
    Wish(
        name="CPU threads",
        words="the fastest number of threads",
        techniques=("cpu_threads",),
    ),
    Wish(
        name="preprocessing cache",
        words="decoding and resizing done once",
        techniques=("sample_cache", "sample_store", "converted_dataset"),
    ),
    Wish(
        name="batch-size search",
        words="number of samples per step, and per update",
        techniques=("optimizer_batch", "validation_batch"),
        attributes=("batch_size",),
        command="hasten batch TARGET",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The result of one technique in a tuning.

    Attributes:
        technique: Its name.
        settings: Settings of the most informative candidate.
        outcome: The ladder's outcome: applied, refused, failed, undecided or pruned.
        reason: The reason in words.
        ratio: Measured speed with it over speed without; None if it was not measured.
        low: Lower end of the ratio's interval.
        high: Upper end.
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
        """The measured gain, such as `1.37x (1.18 to 1.60)`; empty if there is none."""
        if self.ratio is None or self.low is None or self.high is None:
            return ""
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One requested feature in a report.

    Attributes:
        wish: The feature.
        state: `applied` if one of its techniques is in the plan; `tried` if one was measured and none is in the plan; `of
            the job` if only attributes implement it; else `failed`, `refused` (by facts, unmeasured) or `not tried`.
        tried: Each technique mentioned by the tuning, most informative first; for a part of the optimized form, the trial of
            that form.
    """

    wish: Wish
    state: State
    tried: tuple[Tried, ...]

    @property
    def words(self) -> str:
        """Describe the result in a sentence."""
        if not self.tried:
            return "set in the job" if self.state == "of the job" else "not mentioned by this tuning"
        best = self.tried[0]
        part = "part of another form of the job, tried as a whole; " if self.state == "of the job" else ""
        return f"{part}{best.technique}: {best.reason}"


def report(evidence: Mapping[str, Any]) -> list[Row]:
    """Report for each feature what a tuning tried and its gain.

    Args:
        evidence: Content of `evidence.json`; only its `rungs` are read.
    """
    rungs: dict[str, list[Mapping[str, Any]]] = {}
    for rung in evidence["rungs"]:
        rungs.setdefault(rung["name"], []).append(rung)
    return [_row(wish, rungs) for wish in WISHES]


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table: the feature, the measured gain, the result, and the switch."""
    lines = ["| feature | state | gain | result | switch |", "|---|---|---|---|---|"]
    for row in rows:
        measured = row.tried[0].brought if row.tried else ""
        cells = (row.wish.name, row.state, measured or "-", row.words, row.wish.switch)
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
    """Sort key for several settings of one technique: the applied one is most informative, then the fastest measured one."""
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
