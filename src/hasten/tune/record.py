"""The record of a tuning: the evidence as it grows, and the files that hold it.

Saved after every step, each file whole or not at all. What an earlier tuning left in the folder is moved to `previous/`
before the first step, so no failing run destroys a good one.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hasten.core.errors import HastenError
from hasten.core.facts import Facts
from hasten.core.job import Job
from hasten.core.machine import Machine
from hasten.core.plan import Plan
from hasten.core.provenance import commit_of, job_fingerprint, versions
from hasten.core.stats import MIN_FLOOR_FRAC, NonInferiority
from hasten.optimizations import catalogue
from hasten.report import evidence as evidence_file
from hasten.report import write_html
from hasten.tune.budget import Budget
from hasten.tune.objective import Objective, run_cost
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.time_to_target import TargetComparison
from hasten.tune.search.candidate import Candidate
from hasten.tune.search.screening import Screening

FILES = ("hasten.toml", "evidence.json", "report.html")


class Record:
    """Evidence and rungs, and where they are written.

    Args:
        target: The job, as it was named.
        job: The job.
        machine: The machine.
        out: The folder.
        budget: The time budget.

    Attributes:
        evidence: As it stands in `evidence.json`.
        rungs: What became of each candidate so far.
        proved: Whether the final proof stands for the applied rungs.
        retaken: Pairs of the proof that were run again.
    """

    def __init__(self, target: str, job: Job, machine: Machine, out: Path, budget: Budget) -> None:
        self.target, self.job, self.machine, self.out, self.budget = target, job, machine, out, budget
        self.rungs: list[Candidate] = []
        self.proved = False
        self.retaken = 0
        self._earlier_s = 0.0
        self.evidence: dict[str, Any] = {
            "schema": evidence_file.SCHEMA,
            "job": {"target": target, "name": type(job).__name__, "fingerprint": job_fingerprint(job)},
            "machine": {**machine.to_dict(), "summary": machine.summary(), "fingerprint": machine.fingerprint()},
            "commit": commit_of(Path.cwd()),
            "versions": versions(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "budget_seconds": budget.seconds,
            "noise": {"floor_frac": MIN_FLOOR_FRAC, "reason": "not measured yet", "retaken": 0},
            "phases": {},
            "ceilings": {},
            "rungs": [],
            "seconds": 0.0,
        }
        later = ("bottleneck", "phases_after", "final", "memory", "own_cost_frac", "losses", "step_ms")
        self.evidence |= dict.fromkeys(later)
        folder = shlex.quote(str(out))
        self.evidence["commands"] = [
            f"hasten tune {shlex.quote(target)} --budget {budget.seconds:.0f}s --out {folder}",
            f"hasten run {shlex.quote(target)} --plan {folder}/hasten.toml",
        ]

    def applied_plan(self) -> Plan:
        """The plan of the rungs that are applied now."""
        kept = {rung.name: rung.settings for rung in self.rungs if rung.outcome == "applied"}
        return Plan.from_dict(kept, catalogue())

    def set_aside(self) -> None:
        """Move what an earlier tuning left to `previous/`, in place of what lay there."""
        found = [self.out / name for name in FILES if (self.out / name).exists()]
        if not found:
            return
        previous = self.out / "previous"
        previous.mkdir(parents=True, exist_ok=True)
        for path in found:
            shutil.move(path, previous / path.name)

    def take_up(self) -> None:
        """Read what an earlier tuning left, and keep what still stands.

        Raises:
            HastenError: There is nothing, or it belongs to another job or machine.
        """
        path = self.out / "evidence.json"
        if not path.exists():
            raise HastenError(f"There is nothing to resume: {path} does not exist. Leave --resume out to begin.")
        old = evidence_file.load(path)
        for what in ("job", "machine"):
            mine, theirs = self.evidence[what]["fingerprint"], old[what].get("fingerprint")
            if mine != theirs:
                words = f"{path} was measured on another {what} ({theirs}, now {mine})"
                raise HastenError(f"{words}. Leave --resume out to begin anew.")
        self.rungs += [Candidate.from_dict(rung) for rung in old["rungs"] if _is_settled(rung)]
        self._earlier_s = float(old["seconds"])

    def note_profile(self, profile: dict[str, Any], facts: Facts) -> None:
        """Keep the profile of the plain job."""
        self.evidence |= {name: profile[name] for name in ("bottleneck", "phases", "ceilings", "own_cost_frac")}
        self.evidence["step_ms"] = {"baseline": facts.step_ms, "tuned": None}
        self.evidence["memory"] = {
            "baseline_peak_bytes": facts.peak_memory_bytes,
            "tuned_peak_bytes": None,
            "limit_bytes": facts.memory_limit_bytes,
        }
        self.evidence["job"] |= profile["job"]
        self.save()

    def note_noise(self, floor_frac: float, calibration: Screening, *, repeats: bool) -> str:
        """Keep what the comparison of the job with itself gave; returns it in words."""
        interval = calibration.comparison.interval
        reason = "the least that counts; on so busy a machine the job could not be compared with itself"
        if interval is not None:
            reason = f"the plain job against itself, {interval.pairs} turns"
        samples = [sample.to_dict() for sample in calibration.comparison.samples]
        self.evidence["noise"] = {
            "floor_frac": floor_frac, "reason": reason, "repeats": repeats, "retaken": 0, "samples": samples,
        }  # fmt: skip
        return reason

    def drop(self, names: Collection[str], comparison: Comparison, quality: NonInferiority, hint: str) -> list[str]:
        """Take out what changes the mathematics, and keep the proof that did not show it to be harmless.

        Args:
            names: Of techniques.
            comparison: Of the whole plan, with them.
            quality: What it says of held-out data.
            hint: What would say more, in words that follow the reason; may be empty.

        Returns:
            What to say of each.
        """
        said = []
        for rung in self.rungs:
            if rung.name in names and rung.outcome == "applied":
                rung.outcome, rung.reason = "refused", f"held-out quality is not proved to hold: {quality.why}{hint}"
                rung.numerics = {**(rung.numerics or {}), "verdict": "failed", "why": quality.why}
                rung.proof = {**comparison.to_dict(), "quality": self._quality(comparison, quality)}
                said.append(f"refused: {rung.name}: {rung.reason}")
        return said

    def note_final(
        self, comparison: Comparison, quality: NonInferiority | None, reached: TargetComparison | None = None
    ) -> None:
        """Keep the final proof; `reached`: by time to target, where the plan is judged so, with `quality` of whole runs."""
        final = comparison.to_dict()
        final["quality"] = self._quality(comparison if reached is None else reached, quality)
        if reached is not None:
            final["time_to_target"] = reached.to_dict()
        if quality is not None and quality.verdict == "not_worse":
            for rung in self.rungs:
                if rung.outcome == "applied" and rung.numerics and rung.numerics["verdict"] == "pending":
                    rung.numerics |= {"verdict": "passed", "why": quality.why}
        self.evidence["final"] = final
        self.evidence["losses"] = {"baseline": comparison.losses["A"], "tuned": comparison.losses["B"]}
        arms = {"baseline": "A", "tuned": "B"}
        taken = {name: [s for s in comparison.samples if s.arm == arm] for name, arm in arms.items()}
        self.evidence["step_ms"] = {
            name: 1e3 * sum(s.seconds for s in some) / sum(s.updates for s in some) for name, some in taken.items()
        }
        self.evidence["step_ms"]["tuned"] /= self.applied_plan().samples_factor  # of as many samples as the job's own
        peaks = {f"{name}_peak_bytes": max(s.peak_bytes or 0 for s in some) for name, some in taken.items()}
        self.evidence["memory"] |= peaks

    def note_cost(self, objective: Objective, planned_updates: int | None) -> None:
        """Keep what the whole run costs before and after, where a price was given and the run's length is known."""
        if objective.price_per_hour is None or planned_updates is None:
            return
        setup_s = sum(rung.setup_seconds or 0.0 for rung in self.rungs if rung.outcome == "applied")
        for name, setup in (("baseline", 0.0), ("tuned", setup_s)):
            step_ms = self.evidence["step_ms"][name]
            self.evidence["objective"][f"{name}_cost"] = run_cost(step_ms, setup, planned_updates, objective.price_per_hour)

    def _quality(self, comparison: Comparison | TargetComparison, found: NonInferiority | None) -> dict[str, Any] | None:
        quality = self.job.quality
        if found is None or quality is None:
            return None
        if isinstance(comparison, TargetComparison):
            seeds = {arm: comparison.ends(arm) for arm in "AB"}
        else:
            seeds = {arm: [metrics[quality.metric] for metrics in comparison.metrics[arm]] for arm in "AB"}
        return {
            "metric": quality.metric,
            "direction": quality.direction,
            "baseline": sum(seeds["A"]) / len(seeds["A"]),
            "tuned": sum(seeds["B"]) / len(seeds["B"]),
            "margin": quality.margin,
            "verdict": found.verdict,
            "why": found.why,
            "seeds": seeds,
        }

    def save(self, *, ended: str | None = None) -> None:
        """Write evidence and plan as they are now; the plan says whether it is proved."""
        final = self.evidence["final"]
        proof: dict[str, Any] = {
            "state": "proved" if self.proved else "not proved",
            "machine": self.machine.summary(),
            "machine_fingerprint": self.machine.fingerprint(),
            "job_fingerprint": self.evidence["job"]["fingerprint"],
        }
        if self.proved and final:
            proof |= {name: round(final[name], 4) for name in ("ratio", "low", "high")}
            if reached := final.get("time_to_target"):
                proof |= {"time_to_target": round(reached["ratio"], 4)}
        plan = Plan(optimizations=self.applied_plan().optimizations, target=self.target, proved=proof)
        self.evidence |= {
            "rungs": [rung.to_dict() for rung in self.rungs],
            "plan_toml": plan.to_toml(),
            "seconds": self._earlier_s + self.budget.spent,
            "finished": ended is not None,
            "ended": ended or "running",
        }
        self.evidence["noise"]["retaken"] = self.retaken
        evidence_file.save(self.evidence, self.out / "evidence.json")
        plan.save(self.out / "hasten.toml")

    def finish(self, ended: str) -> None:
        """Write everything, the report too."""
        self.save(ended=ended)
        write_html(self.evidence, self.out / "report.html")


def _is_settled(rung: dict[str, Any]) -> bool:
    """Whether an earlier outcome stands: measured ones do; what time did not allow, or facts refused, is looked at again."""
    return rung["comparison"] is not None or rung["outcome"] == "failed"
