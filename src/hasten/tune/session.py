"""Tune a job or a script: profile, calibrate, search, prune, prove. Each step is saved before the next one starts.

The output folder holds `hasten.toml` (the plan), `evidence.json` (every measurement) and `report.html`. If a tuning ends
early (Ctrl-C, the budget, a failing trial), these files hold everything known so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hasten.core.card import Judge
from hasten.core.errors import TrialError
from hasten.core.facts import Facts
from hasten.optimizations import catalogue
from hasten.report.evidence import Candidate, Evidence
from hasten.train.process_group import read_shared_machine
from hasten.tune.baseline import Baseline, losses_of_another_seed, measure_baseline
from hasten.tune.budget import FINAL_SHARE, Budget
from hasten.tune.proof.compare import NEIGHBOUR
from hasten.tune.proof.final import FinalProof
from hasten.tune.proof.whole_runs import TargetDesign
from hasten.tune.record import Record, new_evidence
from hasten.tune.request import TuneRequest
from hasten.tune.search.candidate import NOT_TRIED, names_of, put
from hasten.tune.search.screening import SLICES, Screen
from hasten.tune.search.search import Search
from hasten.tune.search.state import EMPTY, MAX_TURN_UPDATES, TURN_S, Adopted, SearchConfig, SearchState
from hasten.tune.subject import Subject, job_subject
from hasten.tune.trials.pair import Design
from hasten.tune.trials.trial import TrialSetting

CALIBRATION_FRAC = 0.15
"""Repeat the comparison of the job with itself only if that takes less than this share of the budget."""
MIN_TURN_UPDATES, MIN_UNEVEN_TURN_UPDATES = 3, 6
"""Minimum number of updates per turn, and the minimum for jobs whose updates differ in length."""


class Session:
    """One tuning. `run` performs it and returns the evidence.

    Args:
        request: What the user asks for.
        say: Called with a message at each step.
        subject: What to tune; by default, the job that the request names.

    Raises:
        HastenError: The job cannot be loaded, or there is nothing to resume.
    """

    def __init__(
        self, request: TuneRequest, say: Callable[[str], None] = lambda _: None, subject: Subject | None = None
    ) -> None:
        self.request, self.say = request, say
        self.budget = Budget.begin(request.budget_s)
        self.subject = subject or job_subject(request)
        machine = read_shared_machine(request.ranks)
        evidence = new_evidence(
            target=request.target, name=self.subject.name, fingerprint=self.subject.fingerprint,
            commands=self.subject.commands, machine=machine, ranks=request.ranks, budget_s=request.budget_s,
            objective=request.objective,
        )  # fmt: skip
        self.record = Record(evidence, machine, request.out, self.budget)
        if request.resume:
            self.record.resume()
        earlier = self.record.move_previous()
        if earlier and not request.resume:
            say(f"an earlier tuning is in {self.record.out}: its files are now in {earlier}")
        self.setting = TrialSetting(
            target=request.target, folder=request.out / "trials", progress=lambda message: say(f"  {message}"),
            ranks=request.ranks, command=request.command,
        )  # fmt: skip
        self.seed = self.subject.job.seed if request.seed is None else request.seed
        self._screen: Screen | None = None
        self._facts: Facts | None = None

    def run(self) -> Evidence:
        """Run the tuning. KeyboardInterrupt and failing trials end it early; everything known is written first.

        Raises:
            TrialError: The plain job could not be run.
        """
        ended = "trial failures"
        try:
            search = self.prepare()
            search.run()
            if len(search.state.plan.names) > 1:
                self.say("removing each kept technique once, to check that it still pays")
            search.prune()
            self.record.note(phases_after=search.state.phases or None)
            self._prove(search)
            ended = self._how_it_ended()
        except KeyboardInterrupt:
            ended = "interrupted"
            self.say("interrupted: saving what is known so far")
        except TrialError as error:
            self.record.note(failure=str(error))
            if not self.record.evidence.phases:
                raise
            self.say(f"a trial failed; saving what is known so far: {error}")
        finally:
            self.close(ended)
        return self.record.evidence

    def prepare(self) -> Search:
        """Measure the plain job, compare it with itself, and return a search that is ready for its first candidate.

        Raises:
            TrialError: The plain job could not be run.
        """
        self.say("profiling the unmodified job")
        baseline = measure_baseline(self.subject, self.setting, self.seed, self.record)
        facts, uneven = baseline.facts, self.subject.is_uneven(baseline.facts)
        self._facts = facts
        self.say(baseline.diagnosis.words)
        least = MIN_UNEVEN_TURN_UPDATES if uneven else MIN_TURN_UPDATES
        updates = int(min(max(TURN_S / baseline.costs.base_update_s, least), MAX_TURN_UPDATES))
        other, costs = losses_of_another_seed(self.subject, self.setting, self.seed, updates, baseline.costs)
        screen = self._screen = Screen(
            self.subject.processes(self.setting, self.seed, facts), EMPTY, uneven=uneven, others=[other], say=self.say,
            slices=1 if facts.waits_for_data else SLICES,
        )  # fmt: skip
        self._calibrate(screen, updates)
        config = SearchConfig(
            catalogue={name: kind for name, kind in self.subject.kinds.items() if self.request.allows(name)},
            costs=costs,
            budget=self.budget,
            reserve_s=lambda now, tuned_s: now.final_s(FINAL_SHARE * self.request.budget_s, tuned_s),
            updates=updates,
            design=Design(
                updates=updates, uneven=uneven, seed=self.seed, turns=baseline.turns, max_batches=baseline.max_batches
            ),
            floor_frac=screen.floor_frac,
            objective=self.request.objective,
            target_design=self._target_design(baseline),
            events_apart=self.subject.events_apart,
        )
        state = SearchState(
            config=config, facts=facts, diagnosis=baseline.diagnosis, candidates=self.record.candidates,
            filling_s=screen.filling_s,
        )  # fmt: skip
        search = Search(state, screen, self.record.save)
        self._resume(search)
        for candidate in self.left_out():
            put(self.record.candidates, candidate)
        return search

    def _calibrate(self, screen: Screen, updates: int) -> None:
        """Compare the job with itself to measure the noise floor of this machine."""
        self.say("comparing the job with itself to measure this machine's noise")
        again_s = CALIBRATION_FRAC * self.request.budget_s
        calibration = screen.calibrate(max(updates // 2, MIN_TURN_UPDATES), again_s=again_s)
        reason = self.record.note_noise(screen.floor_frac, calibration, repeats=screen.repeatable)
        self.say(f"noise floor: {screen.floor_frac:.1%} ({reason}); smaller differences cannot be detected")

    def close(self, ended: str) -> None:
        """End all processes and write everything. `ended` says why the tuning is over, see docs/reference/evidence.md."""
        if self._screen is not None:
            self._screen.close()
        try:
            if self._facts is not None:
                self.subject.finish(self.record, self._facts)
        finally:
            self.record.finish(ended)

    def left_out(self) -> list[Candidate]:
        """Return a candidate for each technique that the request excludes and that no earlier session tried."""
        known = names_of(self.record.candidates)
        left_out = [name for name in self.subject.kinds if not self.request.allows(name) and name not in known]
        return [
            Candidate(name=name, settings={}, outcome="refused", reason=f"excluded by the request: {flag}")
            for name in left_out
            for flag in ["named in --without" if name in self.request.without else "not named in --only"]
        ]

    def _target_design(self, baseline: Baseline) -> TargetDesign | None:
        quality = self.subject.job.quality
        if quality is None or not self.subject.whole_runs:
            return None
        side_by_side = baseline.turns > 1
        return TargetDesign(quality=quality, max_batches=baseline.max_batches, seed=self.seed, side_by_side=side_by_side)

    def _resume(self, search: Search) -> None:
        """Bring the base process to the plan that an earlier session had reached."""
        plan = self.record.applied_plan()
        if not plan.optimizations:
            return
        self.say(f"resuming at the plan [{', '.join(plan.names)}]")
        screening = search.screen.screen(None, plan, search.state.config.updates)
        search.adopt(Adopted(name=None, warming_s=screening.warming_s))

    def _prove(self, search: Search) -> None:
        """Prove the plan with fresh processes. The resident processes end first."""
        config, job = search.state.config, search.state.facts.job
        quality, processes = self.subject.quality(search.screen), search.screen.processes
        search.screen.close()
        FinalProof(
            setting=self.setting,
            record=self.record,
            design=replace(config.design, quality=quality),
            costs=search.state.costs,
            budget=self.budget,
            objective=self.request.objective,
            events_apart=self.subject.events_apart,
            planned_updates=job.planned_updates if self.subject.whole_runs else None,
            most_updates=processes.most_updates,
            updates_of_ended=lambda error: processes.most_updates if processes.shortens_turns(error) else None,
            say=self.say,
        ).prove(search.state)

    def _how_it_ended(self) -> str:
        candidates, kinds = self.record.candidates, catalogue()
        if not self.record.proved and any(NEIGHBOUR in item.reason for item in candidates):
            return "noise"
        # Most budgets are too short for whole runs. A tuning that skipped them still counts as finished.
        not_tried = (item for item in candidates if item.reason.startswith(NOT_TRIED))
        cut_short = any(
            item.name not in kinds or kinds[item.name].card.judged_by is Judge.UPDATE_TIME for item in not_tried
        )  # fmt: skip
        return "budget" if cut_short else "done"
