"""The record of a tuning: the evidence as it grows, and the files that store it.

Everything is saved after every step, and each file is written atomically. Files of an earlier tuning in the same folder are
moved to `previous/` before the first step, so a failing run never destroys a good result.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hasten.core.errors import HastenError
from hasten.core.facts import Facts
from hasten.core.job import Quality
from hasten.core.machine import Machine
from hasten.core.plan import Plan
from hasten.core.provenance import commit_of, versions
from hasten.core.stats import MIN_FLOOR_FRAC, NonInferiority
from hasten.optimizations import catalogue
from hasten.report import evidence as file
from hasten.report import write_html
from hasten.report.evidence import Candidate, Evidence, Final, QualityResult
from hasten.tune.budget import Budget
from hasten.tune.objective import Objective, run_cost
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.terms import contract_terms
from hasten.tune.proof.time_to_target import TargetComparison
from hasten.tune.search.candidate import put
from hasten.tune.search.screening import Screening

FILES = ("hasten.toml", "hasten.patch", "evidence.json", "report.html")
ARMS = {"baseline": "A", "tuned": "B"}
EPOCH_GAIN = ("epoch_ratio", "epoch_low", "epoch_high")
"""Keys of a plan's proof if the plan acts only on work around the updates."""


class Record:
    """The evidence of one tuning, and where it is written.

    Args:
        evidence: The evidence before the first step, see `new_evidence`.
        machine: The machine.
        out: The output folder.
        budget: The time budget.

    Attributes:
        candidates: The current record of each candidate.
        proved: Whether the final proof holds for the applied candidates.
        retaken: Number of pairs of the proof that were repeated.
    """

    def __init__(self, evidence: Evidence, machine: Machine, out: Path, budget: Budget) -> None:
        self.evidence, self.machine, self.out, self.budget = evidence, machine, out, budget
        self.candidates: list[Candidate] = []
        self.proved = False
        self.retaken = 0
        self._earlier_s = 0.0
        self._terms: dict[str, float | int | str] = {}
        self._num_samples: int | None = None

    def applied_plan(self) -> Plan:
        """Return the plan of the candidates that are applied now."""
        applied = {item.name: dict(item.settings) for item in self.candidates if item.outcome == "applied"}
        return Plan.from_dict(applied, catalogue())

    def move_previous(self) -> Path | None:
        """Move the files of an earlier tuning to `previous/`, or to `previous-2/` and so on if that exists.

        Returns:
            The folder; None if there was no earlier tuning.
        """
        paths = [self.out / name for name in FILES if (self.out / name).exists()]
        if not paths:
            return None
        names = itertools.chain(["previous"], (f"previous-{number}" for number in itertools.count(2)))
        folder = next(self.out / name for name in names if not (self.out / name).exists())
        folder.mkdir(parents=True)
        for path in paths:
            shutil.move(path, folder / path.name)
        return folder

    def resume(self) -> None:
        """Read the evidence of an earlier tuning, and keep the candidates that it measured.

        Raises:
            HastenError: There is no evidence, or it belongs to another job or machine.
        """
        path = self.out / "evidence.json"
        if not path.exists():
            raise HastenError(f"There is nothing to resume: {path} does not exist. Run again without --resume.")
        old = file.load(path)
        for what, before, now in (
            ("job", old.job.fingerprint, self.evidence.job.fingerprint),
            ("machine", old.machine.get("fingerprint"), self.evidence.machine.get("fingerprint")),
        ):
            if now != before:
                message = f"{path} was measured on another {what} (fingerprint {before}, now {now})"
                raise HastenError(f"{message}. Run again without --resume to start from scratch.")
        self.candidates += [item for item in old.rungs if item.comparison is not None or item.outcome == "failed"]
        self._earlier_s = float(old.seconds)

    def note(self, **parts: Any) -> None:
        """Replace fields of the evidence."""
        self.evidence = replace(self.evidence, **parts)

    def note_profile(self, profile: Mapping[str, Any], facts: Facts) -> None:
        """Store the profile of the plain job, as `Profile.to_dict` returns it."""
        job = self.evidence.job
        self._num_samples = facts.job.num_samples
        known = {name: value for name, value in profile["job"].items() if name in ("batch_size", "num_params")}
        more = {name: value for name, value in profile["job"].items() if name not in known}
        self.note(
            bottleneck=file.Bottleneck(**profile["bottleneck"]),
            phases=profile["phases"],
            ceilings=profile["ceilings"],
            own_cost_frac=profile["own_cost_frac"],
            job=replace(job, **known, more={**job.more, **more}),
            step_ms=file.StepMs(baseline=facts.step_ms, tuned=None),
            memory=file.Memory(
                baseline_peak_bytes=facts.peak_memory_bytes, tuned_peak_bytes=None, limit_bytes=facts.memory_limit_bytes
            ),
        )
        self.save()

    def note_noise(self, floor_frac: float, calibration: Screening, *, repeats: bool) -> str:
        """Store the comparison of the job with itself. Returns the basis of the noise floor as a phrase."""
        interval = calibration.comparison.interval
        reason = "the default; the machine was too busy to compare the job with itself"
        if interval is not None:
            reason = f"from {interval.pairs} turns of the job against itself"
        samples = calibration.comparison.to_evidence().samples
        self.note(noise=file.Noise(floor_frac=floor_frac, reason=reason, repeats=repeats, retaken=0, samples=samples))
        return reason

    def change_applied(self, names: set[str], change: Callable[[Candidate], Candidate]) -> list[Candidate]:
        """Change the applied candidates with these names. Returns the changed candidates."""
        changed = [change(item) for item in self.candidates if item.name in names and item.outcome == "applied"]
        for item in changed:
            put(self.candidates, item)
        return changed

    def note_final(
        self,
        comparison: Comparison,
        quality: QualityResult | None,
        reached: TargetComparison | None = None,
    ) -> None:
        """Store the final proof.

        Args:
            comparison: The comparison by update time.
            quality: The verdict on the held-out metric; from the whole runs, if the plan is judged by time to target.
            reached: The comparison by time to target, if the plan is judged by it.
        """
        if quality is not None and quality.verdict == "not_worse":
            self.change_applied(self._pending(), lambda item: with_numerics(item, "passed", str(quality.why)))
        memory, samples = self.evidence.memory, {name: _of(comparison, arm) for name, arm in ARMS.items()}
        step_ms = {name: 1e3 * sum(s.seconds for s in some) / sum(s.updates for s in some) for name, some in samples.items()}
        step_ms["tuned"] /= self.applied_plan().samples_factor  # per update of the job's own number of samples
        peaks = {name: max(s.peak_bytes or 0 for s in some) for name, some in samples.items()}
        self._terms = contract_terms(samples["tuned"], self.evidence.phases_after or {}, quality)
        self.note(
            final=final_of(comparison, quality, reached),
            losses=file.Losses(baseline=tuple(comparison.losses["A"]), tuned=tuple(comparison.losses["B"])),
            step_ms=file.StepMs(**step_ms),
            memory=file.Memory(
                baseline_peak_bytes=peaks["baseline"],
                tuned_peak_bytes=peaks["tuned"],
                limit_bytes=memory.limit_bytes if memory else None,
            ),
        )

    def note_cost(self, objective: Objective, planned_updates: int | None) -> None:
        """Store the cost of the whole run before and after, if a price was given and the length of the run is known."""
        step_ms, wanted = self.evidence.step_ms, self.evidence.objective
        if objective.price_per_hour is None or planned_updates is None or step_ms is None or wanted is None:
            return
        setup_s = sum(item.setup_seconds or 0.0 for item in self.candidates if item.outcome == "applied")
        price = objective.price_per_hour
        baseline = run_cost(step_ms.baseline or 0.0, 0.0, planned_updates, price)
        tuned = run_cost(step_ms.tuned or 0.0, setup_s, planned_updates, price)
        self.note(objective=replace(wanted, baseline_cost=baseline, tuned_cost=tuned))

    def save(self, *, ended: str | None = None) -> None:
        """Write the current evidence and plan. The plan says whether it is proved."""
        final, noise = self.evidence.final, self.evidence.noise
        proof: dict[str, Any] = {
            "state": "proved" if self.proved else "not proved",
            "machine": self.machine.summary(),
            "machine_fingerprint": self.machine.fingerprint(),
            "job_fingerprint": self.evidence.job.fingerprint,
        }
        if self._num_samples is not None:
            proof["samples"] = self._num_samples
        self.note(rungs=tuple(self.candidates))
        if self.proved and self.evidence.epoch_gain is not None:
            proof |= {name: round(gain, 4) for name, gain in zip(EPOCH_GAIN, self.evidence.epoch_gain, strict=True)}
        elif self.proved and final is not None:
            gains = {"ratio": final.ratio, "low": final.low, "high": final.high}
            if final.time_to_target is not None:
                gains["time_to_target"] = final.time_to_target.ratio
            proof |= {name: round(gain, 4) for name, gain in gains.items() if gain is not None} | self._terms
        plan = Plan(optimizations=self.applied_plan().optimizations, target=self.evidence.job.target, proved=proof)
        self.note(
            plan_toml=plan.to_toml(self.out / "hasten.toml"),
            seconds=self._earlier_s + self.budget.spent,
            finished=ended is not None,
            ended=ended or "running",
            noise=replace(noise, retaken=self.retaken) if noise else None,
        )
        file.save(self.evidence, self.out / "evidence.json")
        plan.save(self.out / "hasten.toml")

    def finish(self, ended: str) -> None:
        """Write everything, including the report."""
        self.save(ended=ended)
        write_html(self.evidence, self.out / "report.html")

    def _pending(self) -> set[str]:
        """Return the techniques whose numerics verdict depends on held-out quality."""
        return {item.name for item in self.candidates if item.numerics and item.numerics.verdict == "pending"}


def new_evidence(
    *, target: str, name: str, fingerprint: str, commands: Sequence[str], machine: Machine, ranks: int, budget_s: float,
    objective: Objective,
) -> Evidence:  # fmt: skip
    """Return the evidence before anything was measured.

    Args:
        target: The job, as the user named it.
        name: The name shown to users.
        fingerprint: The job's fingerprint.
        commands: The command lines that reproduce the tuning.
        machine: The machine.
        ranks: Number of processes that train together.
        budget_s: Time budget in seconds.
        objective: What to improve.
    """
    about = {**machine.to_dict(), "summary": machine.summary(), "fingerprint": machine.fingerprint()}
    if ranks > 1:
        about |= {"ranks": ranks, "fingerprint": f"{machine.fingerprint()} x{ranks}"}
    return Evidence(
        schema=file.SCHEMA,
        job=file.JobInfo(target=target, name=name, fingerprint=fingerprint),
        machine=about,
        commit=commit_of(Path.cwd()),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        budget_seconds=budget_s,
        commands=tuple(commands),
        objective=file.Wanted(
            goal=str(objective.goal), max_slowdown=objective.max_slowdown, price_per_hour=objective.price_per_hour
        ),
        noise=file.Noise(floor_frac=MIN_FLOOR_FRAC, reason="not measured yet", retaken=0),
        bottleneck=None,
        phases={},
        ceilings={},
        rungs=(),
        final=None,
        memory=None,
        own_cost_frac=None,
        seconds=0.0,
    )


def final_of(comparison: Comparison, quality: QualityResult | None, reached: TargetComparison | None = None) -> Final:
    """Return a comparison of a whole plan with the plain job, as in the evidence file."""
    return Final(
        **vars(comparison.to_evidence()), quality=quality, time_to_target=reached.to_evidence() if reached else None
    )


def quality_result(
    quality: Quality | None, verdict: NonInferiority | None, comparison: Comparison | TargetComparison
) -> QualityResult | None:
    """Return the verdict on the held-out metric as in the evidence file; None if it was not judged."""
    if verdict is None or quality is None:
        return None
    if isinstance(comparison, TargetComparison):
        seeds = {arm: tuple(comparison.ends(arm)) for arm in "AB"}
    else:
        seeds = {arm: tuple(metrics[quality.metric] for metrics in comparison.metrics[arm]) for arm in "AB"}
    return QualityResult(
        metric=quality.metric,
        direction=quality.direction,
        baseline=sum(seeds["A"]) / len(seeds["A"]),
        tuned=sum(seeds["B"]) / len(seeds["B"]),
        margin=quality.margin,
        verdict=verdict.verdict,
        why=verdict.why,
        seeds=seeds,
    )


def with_numerics(candidate: Candidate, verdict: str, why: str) -> Candidate:
    """Return the candidate with another verdict on its numerics."""
    if candidate.numerics is None:
        return candidate
    return replace(candidate, numerics=replace(candidate.numerics, verdict=verdict, why=why))


def _of(comparison: Comparison, arm: str) -> list[Any]:
    return [sample for sample in comparison.samples if sample.arm == arm]
