"""Tune a job: profile, calibrate, climb, prune, prove; every step saved before the next begins.

The folder then holds `hasten.toml` (the plan), `evidence.json` (everything measured) and `report.html`. Whatever ends the
session early (Ctrl-C, the budget, a failing trial), what is known by then is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from hasten.core.card import Judge, Numerics
from hasten.core.errors import JobError, TrialError
from hasten.core.facts import Facts, JobFacts
from hasten.core.job import Job
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.stats import LOOKS, NonInferiority, Verdict
from hasten.core.target import load_job
from hasten.optimizations import catalogue
from hasten.profile.diagnosis import diagnose
from hasten.train.process_group import read_shared_machine
from hasten.tune.budget import FINAL_SHARE, REPORT_S, Budget, Costs
from hasten.tune.objective import MEMORY_PROVED_FRAC, TIME, Goal, Objective
from hasten.tune.proof.compare import NEIGHBOUR, Comparison, compare, held_out_verdict
from hasten.tune.proof.final import TargetProof
from hasten.tune.proof.settling import what_would_settle
from hasten.tune.proof.time_to_target import TargetComparison
from hasten.tune.proof.whole_runs import TargetDesign
from hasten.tune.record import Record
from hasten.tune.request import check_names
from hasten.tune.search.candidate import Candidate
from hasten.tune.search.noting import NOT_TRIED
from hasten.tune.search.screening import SLICES, Screen
from hasten.tune.search.search import MAX_TURN_UPDATES, TURN_S, Ladder
from hasten.tune.search.verdict import MEMORY_SAVED
from hasten.tune.trials.pair import Design, turns_that_fit
from hasten.tune.trials.trial import Trial, TrialSetting

PROFILE_SHARE, AGAIN_SHARE = 0.005, 0.15
"""Share of the budget for each measured run of the profile."""
MIN_TURN_UPDATES, MIN_UNEVEN_TURN_UPDATES = 3, 6
VALIDATION_S = 3.0
FIRST_PROOF_SHARE = 0.6
"""Of the time that is left, where the plan changes the mathematics: if its quality is not proved, the rest needs its own."""
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
        objective: What is wanted.
        ranks: Processes that train together in each trial.
        command: Where no job but a script is tuned: the script, or `-m` and a module, and its arguments.
        only: Names of techniques; no others are tried. Empty tries all.
        without: Names of techniques that are not tried.
    """

    target: str
    out: Path
    budget_s: float = 300.0
    seed: int | None = None
    resume: bool = False
    objective: Objective = TIME
    ranks: int = 1
    command: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Session:
    """One tuning. `run` does it and returns the evidence.

    Args:
        request: What to tune.
        say: Told in words what is going on.

    Raises:
        HastenError: The job cannot be loaded, there is nothing to resume, or a technique is named that there is not.
    """

    events_apart: ClassVar[bool] = True
    """Reports, checkpoints and validation are measured by themselves, and not as part of the updates."""

    def __init__(self, request: TuneRequest, say: Callable[[str], None] = lambda _: None) -> None:
        self.request, self.say = request, say
        check_names((*request.only, *request.without))
        self.budget = Budget.begin(request.budget_s)
        self.job: Job = self._load_job()
        machine = read_shared_machine(request.ranks)
        self.record = Record(request.target, self.job, machine, request.out, self.budget)
        if request.ranks > 1:
            self.record.evidence["machine"]["ranks"] = request.ranks
            self.record.evidence["machine"]["fingerprint"] += f" x{request.ranks}"
            commands = self.record.evidence["commands"]
            self.record.evidence["commands"] = [f"{line} --ranks {request.ranks}" for line in commands]
        for flag, names in (("--only", request.only), ("--without", request.without)):
            self.record.evidence["commands"][0] += "".join(f" {flag} {name}" for name in names)
        if request.resume:
            self.record.take_up()
        self.record.set_aside()
        self.record.evidence["objective"] = request.objective.to_dict()
        folder = request.out / "trials"
        self.setting = TrialSetting(
            target=request.target, folder=folder, progress=lambda words: say(f"  {words}"), ranks=request.ranks,
            command=request.command,
        )  # fmt: skip
        self.seed = self.job.seed if request.seed is None else request.seed
        self.screen: Screen | None = None
        self.planned_updates: int | None = None

    def _load_job(self) -> Job:
        return load_job(self.request.target)

    @property
    def uneven(self) -> bool:
        """Whether updates differ by nature."""
        return self.job.overrides("length")

    def run(self) -> dict[str, Any]:
        """Tune. KeyboardInterrupt and failing trials end it early, with everything known written.

        Raises:
            TrialError: Not even the plain job could be run.
        """
        ended = "trial failures"
        try:
            ladder = self._prepare()
            ladder.climb()
            self.say("taking each kept rung out once")
            ladder.prune()
            self.record.evidence["phases_after"] = ladder.phases or None
            ladder.screen.close()
            self._prove(ladder)
            ended = self._how_it_ended()
        except KeyboardInterrupt:
            ended = "interrupted"
            self.say("interrupted: writing what is known")
        except TrialError as error:
            self.record.evidence["failure"] = str(error)
            if not self.record.evidence["phases"]:
                raise
            self.say(f"a trial failed, writing what is known: {error}")
        finally:
            if self.screen is not None:
                self.screen.close()
            self.record.finish(ended)
        return self.record.evidence

    def _how_it_ended(self) -> str:
        rungs = self.record.rungs
        if not self.record.proved and any(NEIGHBOUR in rung.reason for rung in rungs):
            return "noise"
        # Whole runs are more than most budgets hold: that they were left out does not make a tuning an unfinished one.
        kinds = catalogue()
        left_out = (rung for rung in rungs if rung.reason.startswith(NOT_TRIED))
        cut_short = any(rung.name not in kinds or kinds[rung.name].card.judged_by is Judge.UPDATE_TIME for rung in left_out)
        return "budget" if cut_short else "done"

    # Getting ready.

    def _prepare(self) -> Ladder:
        facts = self._profile()
        diagnosis = diagnose(
            self.record.evidence["phases"], facts.ceilings, wait_frac=facts.input_wait_frac, straggler=facts.straggler
        )
        self.say(diagnosis.words)
        uneven = self.uneven
        least = MIN_UNEVEN_TURN_UPDATES if uneven else MIN_TURN_UPDATES
        updates = int(min(max(TURN_S / self.costs.base_update_s, least), MAX_TURN_UPDATES))
        others = [self._other_seed(updates)]
        self.say("comparing the job with itself, to learn this machine's noise")
        screen = self.screen = self._make_screen(others, 1 if facts.waits_for_data else SLICES)
        calibration = screen.calibrate(max(updates // 2, MIN_TURN_UPDATES), again_s=AGAIN_SHARE * self.request.budget_s)
        reason = self.record.note_noise(screen.floor_frac, calibration, repeats=screen.repeats())
        self.say(f"differences below {screen.floor_frac:.1%} cannot be told here ({reason})")
        ladder = Ladder(
            catalogue=self.catalogue(), facts=facts, diagnosis=diagnosis, screen=screen, costs=self.costs,
            budget=self.budget,
            reserve_s=lambda tuned_s: self.costs.final_s(FINAL_SHARE * self.request.budget_s, tuned_s),
            updates=updates, design=Design(updates=updates, uneven=uneven, seed=self.seed, turns=self.turns),
            save=self.record.save, say=self.say, rungs=self.record.rungs, objective=self.request.objective,
            target_design=self._target_design(), events_apart=self.events_apart,
        )  # fmt: skip
        self._take_up(ladder)
        self._note_left_out()
        return ladder

    def _make_screen(self, others: list[list[float]], slices: int) -> Screen:
        return Screen(self.setting, EMPTY, uneven=self.uneven, others=others, seed=self.seed, say=self.say, slices=slices)

    def kinds(self) -> Mapping[str, type[Optimization]]:
        """What could be tried here."""
        return catalogue()

    def catalogue(self) -> Mapping[str, type[Optimization]]:
        """What may be tried: all that could be, less what was asked to be left out."""
        only, without = self.request.only, self.request.without
        return {name: kind for name, kind in self.kinds().items() if (name in only or not only) and name not in without}

    def _note_left_out(self) -> None:
        """A rung for each technique that was asked to be left out."""
        known, tried = {rung.name for rung in self.record.rungs}, self.catalogue()
        for name in self.kinds():
            if name not in tried and name not in known:
                flag = "--without names it" if name in self.request.without else "--only names others"
                reason = f"left out, as was asked: {flag}"
                self.record.rungs.append(Candidate(name=name, settings={}, outcome="refused", reason=reason))

    def _profile(self) -> Facts:
        """Profile the plain job in a process of its own; learns what things cost here."""
        self.say("profiling the job as it is")
        started = monotonic()
        with Trial(self.setting, EMPTY, seed=self.seed) as trial:
            start_s = monotonic() - started
            slice_s = min(max(PROFILE_SHARE * self.request.budget_s, 0.5), 5.0)
            answer = trial.call("profile", slice_s=slice_s, quick=False, folder=str(self.request.out.resolve()))
            if self.job.quality is not None:
                self._check_metric(self.job.quality.metric, trial.call("validate", max_batches=1)["metrics"])
        profile = answer["profile"]
        facts = Facts(machine=self.record.machine, job=JobFacts(**profile["job"]), **answer["facts"])
        self.planned_updates = facts.job.planned_updates
        self.record.note_profile(profile, facts)
        self.turns = turns_that_fit(facts)
        batches, batch_s = profile["validation"]["batches"], profile["validation"]["batch_s"]
        self.max_batches = min(batches, max(int(VALIDATION_S / batch_s), 1)) if batch_s else None
        validation_s = batch_s * (self.max_batches or 0)
        self.costs = Costs(
            start_s=start_s,
            base_update_s=facts.step_ms / 1e3,
            validation_s=validation_s,
            side_by_side=self.turns > 1 and not self.setting.command,
        )
        return facts

    def _target_design(self) -> TargetDesign | None:
        quality = self.job.quality
        if quality is None:
            return None
        return TargetDesign(quality=quality, max_batches=self.max_batches, seed=self.seed, side_by_side=self.turns > 1)

    def _check_metric(self, name: str, metrics: dict[str, float]) -> None:
        if name not in metrics:
            words = f"quality names the metric {name!r}, but there are only {sorted(metrics)}"
            raise JobError(f"{type(self.job).__name__}.{words}. Let metric(model, batch) return it, or name another.")

    def _take_up(self, ladder: Ladder) -> None:
        """Bring the resident base to the plan that an earlier session had reached."""
        plan = self.record.applied_plan()
        if not plan.optimizations:
            return
        self.say(f"taking up at the plan [{', '.join(plan.names)}]")
        ladder.screen.screen(None, plan, ladder.updates)
        ladder.screen.promote()
        ladder.refresh()

    def _other_seed(self, updates: int) -> list[float]:
        """Losses of the plain job with another seed: what chance does to the curve."""
        with self._trial_of_another_seed() as trial:
            losses: list[float] = trial.call("run", updates=max(3 * updates // 2, 8))["losses"]
        return losses

    def _trial_of_another_seed(self) -> Trial:
        """A process with another seed. The first one may have compiled kernels and drawn data; this one starts as all do."""
        started = monotonic()
        trial = Trial(self.setting, EMPTY, seed=self.seed + 1)
        self.costs = replace(self.costs, start_s=min(self.costs.start_s, monotonic() - started))
        return trial

    # The proof.

    def _prove(self, ladder: Ladder) -> None:
        plan = self.record.applied_plan()
        if not plan.optimizations:
            self.say("nothing that was tried made this job faster without harm")
            return
        tuned_s = ladder.trial_update_s / plan.samples_factor  # of as many samples as an update of the job's own
        reached = TargetProof(self.setting, self.record, self.budget, self.say).prove(ladder)
        plan = self.record.applied_plan()
        if not plan.optimizations:
            return
        if reached is not None:
            self._prove_beside(reached, plan, tuned_s)
            return
        training = [item for item in plan.optimizations if item.numerics is Numerics.TRAINING]
        whole = self.planned_updates if training and self.job.quality is not None else None
        spent_s = self.budget.spent
        comparison, quality = self._final(plan, tuned_s, FIRST_PROOF_SHARE if training else 1.0, whole=whole)
        if quality is not None and quality.verdict != "not_worse" and training:
            hint = self._hint(comparison, quality, tuned_s, whole, self.budget.spent - spent_s)
            for words in self.record.drop({item.card.name for item in training}, comparison, quality, hint):
                self.say(words)
            plan = self.record.applied_plan()
            if not plan.optimizations:
                return
            comparison, quality = self._final(plan, tuned_s)
        self.record.note_final(comparison, quality)
        self.record.note_cost(self.request.objective, self.planned_updates)
        self._judge(plan, comparison, quality)

    def _prove_beside(self, reached: TargetComparison, plan: Plan, tuned_s: float) -> None:
        """The time of an update, where the plan is proved by time to target: whole runs have judged its quality.

        A short run would judge a schedule by its warm-up, so no held-out metric is measured here.
        """
        comparison, _ = self._final(plan, tuned_s, held_out=False)
        self.record.note_final(comparison, reached.held_out, reached)
        self.record.note_cost(self.request.objective, self.planned_updates)
        self._judge(plan, comparison, reached.held_out, reached)

    def _judge(
        self, plan: Plan, comparison: Comparison, quality: NonInferiority | None, reached: TargetComparison | None = None
    ) -> None:
        """Adopt the plan, or take its rungs out again."""
        memory = self.record.evidence["memory"]
        saves = any(item.card.memory_technique for item in plan.optimizations)
        saves = saves and memory["tuned_peak_bytes"] < MEMORY_SAVED * memory["baseline_peak_bytes"]
        why = ""
        if quality is not None and quality.verdict == "worse":
            why = "the held-out quality became worse"
        elif self.request.objective.goal is Goal.MEMORY:
            why = self._why_no_memory(comparison)
        elif comparison.verdict is not Verdict.FASTER and not saves and (reached is None or comparison.interval is None):
            why = f"the final proof says {comparison.verdict}: {comparison.why}"
        self.record.proved = not why
        if not why:
            return
        harmed = comparison.verdict is Verdict.SLOWER or (quality is not None and quality.verdict == "worse")
        apart = self.events_apart and not harmed
        around = {item.card.name for item in plan.optimizations if item.card.event and apart}
        for rung in self.record.rungs:
            if rung.outcome == "applied" and rung.name in around:  # the time of an update says nothing of it
                self.record.proved = True
            elif rung.outcome == "applied":
                rung.outcome = "undecided" if comparison.verdict is Verdict.UNDECIDED else "refused"
                rung.reason += f"; taken out again because {why}"

    def _why_no_memory(self, comparison: Comparison) -> str:
        """Why the plan is no answer to a wish for less memory; empty where it is one."""
        memory, objective, interval = self.record.evidence["memory"], self.request.objective, comparison.interval
        if interval is None:
            return f"the final proof says {comparison.verdict}: {comparison.why}"
        saved = 1.0 - memory["tuned_peak_bytes"] / memory["baseline_peak_bytes"]
        if saved < MEMORY_PROVED_FRAC:
            return f"the whole plan lowers the peak memory by {saved:.0%} only, and {MEMORY_PROVED_FRAC:.0%} counts"
        if not objective.allows(interval.low):
            return f"updates may take {1 / interval.low:.2f} times as long, and {objective.max_slowdown:.2f} is allowed"
        return ""

    def _final(
        self, plan: Plan, tuned_s: float, share: float = 1.0, *, held_out: bool = True, whole: int | None = None
    ) -> tuple[Comparison, NonInferiority | None]:
        """The proof; over `whole` updates, those of the whole run, where they fit into its share of the time."""
        seconds = max(share * (self.budget.left - REPORT_S), 1.0)
        fits = whole is not None and self.costs.whole_proof_s(whole, tuned_s) <= seconds
        updates = whole if whole is not None and fits else self._final_updates(seconds, tuned_s)
        words = "whole runs of " if fits else ""
        self.say(f"the proof: fresh processes in turns, {words}{updates} updates each, plan [{', '.join(plan.names)}]")
        quality = self.job.quality if held_out else None
        design = Design(
            updates=updates, uneven=self.uneven, seed=self.seed, quality=quality,
            max_batches=self.max_batches, looks=LOOKS, deadline=monotonic() + seconds, turns=self.turns,
        )  # fmt: skip
        comparison = compare(self.setting, EMPTY, plan, design, on_pair=self._say_pair)
        self.record.retaken += comparison.retaken
        return comparison, None if quality is None else held_out_verdict(comparison, quality)

    def _final_updates(self, seconds: float, tuned_s: float) -> int:
        """Updates of each process of the proof."""
        return self.costs.final_updates(seconds, tuned_s)

    def _say_pair(self, so_far: Comparison) -> None:
        last = so_far.samples[-2:]
        a, b = (next(sample.seconds_per_item for sample in last if sample.arm == arm) for arm in "AB")
        spoilt = " (spoilt by a neighbour)" if any(sample.spoilt for sample in last) else ""
        self.say(f"pair {len(so_far.metrics['A'])}: {a / b:.2f}x{spoilt}")

    def _hint(
        self, comparison: Comparison, quality: NonInferiority, tuned_s: float, whole: int | None, proof_s: float
    ) -> str:
        """What would settle the held-out metric, in words; `proof_s`: seconds of the proof that did not."""
        if whole is None or self.job.quality is None:
            return ""
        were_whole = all(sample.updates >= whole for sample in comparison.samples if sample.arm == "A")

        def budget_of(pairs: int) -> str:
            return self.budget.ask_for(self.costs.whole_proof_s(whole, tuned_s, pairs) / FIRST_PROOF_SHARE - proof_s)

        return what_would_settle(quality, self.job.quality.margin, whole_runs=were_whole, budget_of=budget_of)
