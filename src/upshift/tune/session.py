"""Tune a job: profile, calibrate, climb, prune, prove; every step saved before the next begins.

The folder then holds `upshift.toml` (the plan), `evidence.json` (everything measured) and `report.html`. Whatever ends the
session early (Ctrl-C, the budget, a failing trial), what is known by then is in them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from upshift.core.errors import TrialError, UpshiftError
from upshift.core.facts import Facts, JobFacts
from upshift.core.job import Job
from upshift.core.machine import Machine, read_machine
from upshift.core.optimization import Numerics
from upshift.core.plan import Plan
from upshift.core.stats import LOOKS, NonInferiority, Verdict
from upshift.core.target import load_job
from upshift.optimizations import catalogue
from upshift.profile.diagnosis import diagnose
from upshift.report import evidence as evidence_file
from upshift.report import write_html
from upshift.tune.budget import FINAL_SHARE, Budget, Costs
from upshift.tune.compare import NEIGHBOUR, Comparison, Design, compare, held_out_verdict
from upshift.tune.ladder import MAX_TURN_UPDATES, NOT_TRIED, TURN_S, Ladder
from upshift.tune.provenance import commit_of, job_fingerprint, versions
from upshift.tune.rung import Rung
from upshift.tune.screen import Screen
from upshift.tune.trial import Trial, TrialSetting

PROFILE_SHARE = 0.005
"""Share of the budget for each measured run of the profile."""
MIN_TURN_UPDATES, MIN_UNEVEN_TURN_UPDATES = 3, 6
VALIDATION_S = 3.0
EMPTY: Plan = Plan()


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What to tune, and how long.

    Attributes:
        target: The job.
        out: Folder for plan, evidence and report.
        budget_s: Time budget in seconds; kept to within 15 %.
        seed: Overrides the job's seed for the experiment.
        resume: Take up the evidence in `out` where it ended.
    """

    target: str
    out: Path
    budget_s: float = 300.0
    seed: int | None = None
    resume: bool = False


class Session:
    """One tuning. `run` does it and returns the evidence.

    Args:
        request: What to tune.
        say: Told in words what is going on.
    """

    def __init__(self, request: TuneRequest, say: Callable[[str], None] = lambda _: None) -> None:
        self.request, self.say = request, say
        self.budget = Budget.begin(request.budget_s)
        self.job: Job = load_job(request.target)
        self.machine: Machine = read_machine()
        self.setting = TrialSetting(
            target=request.target, folder=request.out / "trials", progress=lambda words: say(f"  {words}")
        )
        self.seed = self.job.seed if request.seed is None else request.seed
        self.plan = EMPTY
        self.rungs: list[Rung] = []
        self.retaken = 0
        self.evidence = self._new_evidence()
        self.resumed = self._take_up() if request.resume else False
        self._earlier_s = float(self.evidence["seconds"]) if self.resumed else 0.0

    def run(self) -> dict[str, Any]:
        """Tune. KeyboardInterrupt and failing trials end it early, with everything known written.

        Raises:
            TrialError: Not even the plain job could be run.
        """
        screen: Screen | None = None
        ended = "done"
        try:
            screen, ladder = self._prepare()
            ladder.climb()
            self.say("taking each kept rung out once")
            ladder.prune()
            self.plan = screen.plan
            self.evidence["phases_after"] = ladder.phases or None
            screen.close()
            self._prove(ladder)
            ended = self._how_it_ended()
        except KeyboardInterrupt:
            ended = "interrupted"
            self.say("interrupted: writing what is known")
            if screen is not None:
                self.plan = screen.plan
        except TrialError as error:
            ended = "trial failures"
            self.evidence["failure"] = str(error)
            if not self.evidence["phases"]:
                raise
            self.say(f"a trial failed, writing what is known: {error}")
        finally:
            if screen is not None:
                screen.close()
            self._finish(ended)
        return self.evidence

    def _how_it_ended(self) -> str:
        if not self.plan.optimizations and any(NEIGHBOUR in rung.reason for rung in self.rungs):
            return "noise"
        return "budget" if any(rung.reason.startswith(NOT_TRIED) for rung in self.rungs) else "done"

    # Getting ready.

    def _prepare(self) -> tuple[Screen, Ladder]:
        self.say("profiling the job as it is")
        started = monotonic()
        with Trial(self.setting, EMPTY, seed=self.seed) as trial:
            start_s = monotonic() - started
            slice_s = min(max(PROFILE_SHARE * self.request.budget_s, 0.5), 5.0)
            answer = trial.call("profile", slice_s=slice_s, quick=False)
        facts = Facts(machine=self.machine, job=JobFacts(**_job(answer)), **answer["facts"])
        profile = answer["profile"]
        self._note_profile(profile, facts)
        diagnosis = diagnose(profile["phases"], facts.ceilings, wait_frac=facts.input_wait_frac)
        self.say(diagnosis.words)
        update_s = facts.step_ms / 1e3
        uneven = self.job.overrides("length")
        least = MIN_UNEVEN_TURN_UPDATES if uneven else MIN_TURN_UPDATES
        updates = int(min(max(TURN_S / update_s, least), MAX_TURN_UPDATES))
        batches, batch_s = profile["validation"]["batches"], profile["validation"]["batch_s"]
        self.max_batches = min(batches, max(int(VALIDATION_S / batch_s), 1)) if batch_s else None
        validation_s = batch_s * (self.max_batches or 0)
        self.costs = Costs(start_s=start_s, base_update_s=update_s, validation_s=validation_s)
        others = [self._other_seed(updates)]
        self.say("comparing the job with itself, to learn this machine's noise")
        screen = Screen(self.setting, EMPTY, uneven=uneven, others=others, say=self.say)
        calibration = screen.calibrate(max(updates // 2, MIN_TURN_UPDATES))
        reason = (
            f"the plain job against itself, {calibration.comparison.interval.pairs} turns" if calibration.comparison.interval
            else "the least that counts; the job could not be compared with itself on so busy a machine"
        )  # fmt: skip
        self.evidence["noise"] = {
            "floor_frac": screen.floor_frac,
            "reason": reason,
            "repeats": screen.repeats(),
            "retaken": 0,
        }
        self.say(f"differences below {screen.floor_frac:.1%} cannot be told here ({reason})")
        ladder = Ladder(
            catalogue=catalogue(), facts=facts, diagnosis=diagnosis, screen=screen, costs=self.costs, budget=self.budget,
            reserve_s=lambda tuned_s: self.costs.final_s(FINAL_SHARE * self.request.budget_s, tuned_s),
            updates=updates, design=Design(updates=updates, uneven=uneven, seed=self.seed),
            save=self._save, say=self.say, rungs=self.rungs,
        )  # fmt: skip
        if self.resumed and self.plan.optimizations:
            self._replay(screen, ladder)
        return screen, ladder

    def _replay(self, screen: Screen, ladder: Ladder) -> None:
        """Bring the resident base to the plan that the earlier session had reached."""
        self.say(f"taking up at the plan [{', '.join(self.plan.names)}]")
        screen.screen(None, self.plan, ladder.updates)
        screen.promote()
        ladder.refresh()

    def _other_seed(self, updates: int) -> list[float]:
        """Losses of the plain job with another seed: what chance does to the curve."""
        with Trial(self.setting, EMPTY, seed=self.seed + 1) as trial:
            losses: list[float] = trial.call("run", updates=max(3 * updates // 2, 8))["losses"]
        return losses

    # The proof.

    def _prove(self, ladder: Ladder) -> None:
        if not self.plan.optimizations:
            self.say("nothing that was tried made this job faster without harm")
            return
        comparison = self._final(ladder.update_s)
        quality = self._quality(comparison)
        training = [item for item in self.plan.optimizations if item.card.numerics is Numerics.TRAINING]
        if quality is not None and quality.verdict != "not_worse" and training:
            self._drop(training, quality)
            if self.plan.optimizations and self.budget.left > 0:
                comparison = self._final(ladder.update_s)
                quality = self._quality(comparison)
        if not self.plan.optimizations:
            return
        self._note_final(comparison, quality)
        harmed = quality is not None and quality.verdict == "worse"
        if comparison.verdict is not Verdict.FASTER or harmed:
            why = (
                "the held-out quality became worse"
                if harmed
                else f"the final proof says {comparison.verdict}: {comparison.why}"
            )
            for rung in self.rungs:
                if rung.outcome == "applied":
                    rung.outcome = "refused" if harmed else "undecided"
                    rung.reason += f"; taken out again because {why}"
            self.plan = EMPTY

    def _final(self, tuned_s: float) -> Comparison:
        updates = self.costs.final_updates(min(FINAL_SHARE * self.request.budget_s, max(self.budget.left, 1.0)), tuned_s)
        self.say(f"the proof: fresh processes in turns, {updates} updates each, plan [{', '.join(self.plan.names)}]")
        design = Design(
            updates=updates, uneven=self.job.overrides("length"), seed=self.seed, quality=self.job.quality,
            max_batches=self.max_batches, looks=LOOKS, deadline=self.budget.deadline,
        )  # fmt: skip

        def on_pair(so_far: Comparison) -> None:
            times = [so_far.samples[-2], so_far.samples[-1]]
            a, b = (next(s.seconds_per_item for s in times if s.arm == arm) for arm in "AB")
            spoilt = " (spoilt by a neighbour)" if any(sample.spoilt for sample in times) else ""
            self.say(f"pair {len(so_far.metrics['A'])}: {a / b:.2f}x{spoilt}")

        comparison = compare(self.setting, EMPTY, self.plan, design, on_pair=on_pair)
        self.retaken += comparison.retaken
        return comparison

    def _quality(self, comparison: Comparison) -> NonInferiority | None:
        quality = self.job.quality
        if quality is None:
            return None
        return held_out_verdict(comparison, quality)

    def _drop(self, training: list[Any], quality: NonInferiority) -> None:
        """Take out what changes the mathematics: its harmlessness was not proved."""
        for item in training:
            self.plan = self.plan.minus(item.card.name)
            for rung in self.rungs:
                if rung.name == item.card.name and rung.outcome == "applied":
                    rung.outcome, rung.reason = "refused", f"held-out quality is not proved to hold: {quality.why}"
                    rung.numerics = {**(rung.numerics or {}), "verdict": "failed", "why": quality.why}

    # Writing.

    def _note_profile(self, profile: dict[str, Any], facts: Facts) -> None:
        self.evidence |= {
            "bottleneck": profile["bottleneck"],
            "phases": profile["phases"],
            "ceilings": profile["ceilings"],
            "own_cost_frac": profile["own_cost_frac"],
            "step_ms": {"baseline": facts.step_ms, "tuned": None},
            "memory": {
                "baseline_peak_bytes": facts.peak_memory_bytes,
                "tuned_peak_bytes": None,
                "limit_bytes": facts.memory_limit_bytes,
            },
        }
        self.evidence["job"] |= profile["job"]
        self._save()

    def _note_final(self, comparison: Comparison, quality: NonInferiority | None) -> None:
        final = comparison.to_dict()
        final["quality"] = None
        if quality is not None and self.job.quality is not None:
            name = self.job.quality.metric
            mean = {arm: [metrics[name] for metrics in comparison.metrics[arm]] for arm in "AB"}
            final["quality"] = {
                "metric": name,
                "direction": self.job.quality.direction,
                "baseline": sum(mean["A"]) / len(mean["A"]),
                "tuned": sum(mean["B"]) / len(mean["B"]),
                "margin": self.job.quality.margin,
                "verdict": quality.verdict,
                "why": quality.why,
                "seeds": mean,
            }
            if quality.verdict == "not_worse":
                for rung in self.rungs:
                    if rung.outcome == "applied" and rung.numerics and rung.numerics["verdict"] == "pending":
                        rung.numerics |= {"verdict": "passed", "why": quality.why}
        self.evidence["final"] = final
        self.evidence["losses"] = {"baseline": comparison.losses["A"], "tuned": comparison.losses["B"]}
        base = [sample for sample in comparison.samples if sample.arm == "A"]
        tuned = [sample for sample in comparison.samples if sample.arm == "B"]
        per_update = {"baseline": base, "tuned": tuned}
        self.evidence["step_ms"] = {
            name: 1e3 * sum(s.seconds for s in some) / sum(s.updates for s in some) for name, some in per_update.items()
        }
        self.evidence["memory"] |= {
            "baseline_peak_bytes": max(sample.peak_bytes or 0 for sample in base),
            "tuned_peak_bytes": max(sample.peak_bytes or 0 for sample in tuned),
        }

    def _finish(self, ended: str) -> None:
        self._save(ended=ended)
        write_html(self.evidence, self.request.out / "report.html")

    def _save(self, *, ended: str | None = None) -> None:
        final = self.evidence["final"]
        interval = final if self.plan.optimizations and final else None
        proved: dict[str, Any] = {"machine": self.machine.summary(), "machine_fingerprint": self.machine.fingerprint()}
        proved["job_fingerprint"] = self.evidence["job"]["fingerprint"]
        if interval:
            proved |= {name: round(interval[name], 4) for name in ("ratio", "low", "high")}
        kept = {rung.name: rung.settings for rung in self.rungs if rung.outcome == "applied"}
        plan = Plan(optimizations=Plan.from_dict(kept, catalogue()).optimizations, target=self.request.target, proved=proved)
        self.evidence |= {
            "rungs": [rung.to_dict() for rung in self.rungs],
            "plan_toml": plan.to_toml(),
            "seconds": self._earlier_s + self.budget.spent,
            "finished": ended is not None,
            "ended": ended or "running",
        }
        self.evidence["noise"]["retaken"] = self.retaken
        evidence_file.save(self.evidence, self.request.out / "evidence.json")
        plan.save(self.request.out / "upshift.toml")

    def _new_evidence(self) -> dict[str, Any]:
        target, out = shlex.quote(self.request.target), shlex.quote(str(self.request.out))
        seed = "" if self.request.seed is None else f" --seed {self.request.seed}"
        return {
            "schema": evidence_file.SCHEMA,
            "job": {
                "target": self.request.target,
                "name": type(self.job).__name__,
                "fingerprint": job_fingerprint(self.job),
            },
            "machine": {
                **self.machine.to_dict(),
                "summary": self.machine.summary(),
                "fingerprint": self.machine.fingerprint(),
            },
            "commit": commit_of(Path.cwd()),
            "versions": versions(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "budget_seconds": self.request.budget_s,
            "bottleneck": None,
            "phases": {},
            "phases_after": None,
            "ceilings": {},
            "rungs": [],
            "final": None,
            "memory": None,
            "own_cost_frac": None,
            "noise": {"floor_frac": 0.03, "reason": "not measured yet", "retaken": 0},
            "losses": None,
            "step_ms": None,
            "seconds": 0.0,
            "commands": [
                f"upshift tune {target} --budget {self.request.budget_s:.0f}s --out {out}{seed}",
                f"upshift run {target} --plan {out}/upshift.toml",
            ],
        }

    def _take_up(self) -> bool:
        """Read what an earlier session left; refuse what does not belong to this job and machine."""
        path = self.request.out / "evidence.json"
        if not path.exists():
            raise UpshiftError(f"There is nothing to resume: {path} does not exist. Leave --resume out to begin.")
        old = evidence_file.load(path)
        for what, mine, theirs in (
            ("job", self.evidence["job"]["fingerprint"], old["job"].get("fingerprint")),
            ("machine", self.evidence["machine"]["fingerprint"], old["machine"].get("fingerprint")),
        ):
            if mine != theirs:
                raise UpshiftError(
                    f"{path} was measured on another {what} ({theirs}, now {mine}). Leave --resume out to begin anew."
                )
        self.rungs = [Rung.from_dict(rung) for rung in old["rungs"] if _is_settled(rung)]
        kept = {rung.name: rung.settings for rung in self.rungs if rung.outcome == "applied"}
        self.plan = Plan.from_dict(kept, catalogue())
        self.evidence["seconds"] = old["seconds"]
        return True


def _is_settled(rung: dict[str, Any]) -> bool:
    """Whether an earlier outcome stands: measured ones do; what time did not allow, or facts refused, is looked at again."""
    return rung["comparison"] is not None or rung["outcome"] == "failed"


def _job(answer: dict[str, Any]) -> dict[str, Any]:
    job = dict(answer["profile"]["job"])
    job["param_dtypes"] = tuple(job["param_dtypes"])
    return job
