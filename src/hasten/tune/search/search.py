"""The search: run the strategies one after the other, guided by the bottleneck and the measured ceilings.

Only this module acts on the results of strategies: it records them, adopts plans and profiles again afterwards. Every
technique is recorded, including those that do not fit, cannot gain enough, fail, do harm or were not reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from hasten.core.facts import Facts, JobFacts
from hasten.profile.diagnosis import Diagnosis
from hasten.report.words import outcome_line
from hasten.tune.search.by_epoch import try_events
from hasten.tune.search.by_target import try_to_target
from hasten.tune.search.by_update import try_candidates
from hasten.tune.search.candidate import NOT_TRIED, names_of, put
from hasten.tune.search.event_design import EVENTS, carried_events, kept_event_facts
from hasten.tune.search.prune import prune
from hasten.tune.search.ranking import untried
from hasten.tune.search.retries import look_again, try_pairs
from hasten.tune.search.screening import Screen
from hasten.tune.search.state import Adopted, Result, Results, SearchState

Strategy: TypeAlias = Callable[[SearchState, Screen], Results]

STRATEGIES: tuple[Strategy, ...] = (try_candidates, try_pairs, look_again, try_events, try_to_target)
QUICK_SLICE_S = 0.6
"""Seconds of each measured run in a quick profile."""
UNCHANGED = ("op_frac", "op_counts", "bf16_matmul_gain", "form_gains")
"""Facts that a quick profile leaves out, because no change of plan alters them."""


class Search:
    """Runs the strategies.

    Args:
        state: The state to start from.
        screen: The resident processes; its base runs under the plan of the state.
        save: Called after each recorded result.
    """

    def __init__(self, state: SearchState, screen: Screen, save: Callable[[], None]) -> None:
        self.state, self.screen, self._save = state, screen, save

    def run(self) -> None:
        """Try candidates until none is left or the time is up."""
        for strategy in STRATEGIES:
            self._follow(strategy)
        if late := names_of(item for item in self.state.candidates if item.reason.startswith(NOT_TRIED)):
            self.screen.say(f"not tried for lack of time: {', '.join(sorted(late))}")
        self._record(Result(tuple(untried(self.state)), quiet=True))

    def prune(self) -> None:
        """Remove techniques that no longer pay alongside the others."""
        self._follow(prune)

    def adopt(self, adopted: Adopted) -> None:
        """Make the challenger's plan the current plan."""
        state = self.state
        self.screen.promote()
        state.plan, state.newest = self.screen.plan, state.newest if adopted.name is None else adopted.name
        state.speed *= adopted.speed
        state.warming_s += adopted.warming_s
        if adopted.profiled:
            self._profile(adopted)

    def _profile(self, adopted: Adopted) -> None:
        """Measure again where the time goes."""
        state = self.state
        self.screen.say("measuring again where the time goes")
        answer = self.screen.profile(slice_s=QUICK_SLICE_S, quick=True)
        state.facts = updated_facts(state.facts, answer, adopted)
        state.diagnosis = Diagnosis.from_dict(answer["profile"]["bottleneck"])
        state.phases = updated_phases(state.facts, answer["profile"]["phases"])
        self.screen.say(f"now: {state.diagnosis.words}")

    def _follow(self, strategy: Strategy) -> None:
        for result in strategy(self.state, self.screen):
            self._record(result)

    def _record(self, result: Result) -> None:
        for candidate in result.candidates:
            put(self.state.candidates, candidate)
            if not result.quiet:
                self.screen.say(outcome_line(candidate))
        self._save()
        if result.adopted is not None:
            self.adopt(result.adopted)
        self.state.filling_s = self.screen.filling_s


def updated_facts(old: Facts, answer: Mapping[str, Any], adopted: Adopted) -> Facts:
    """Return the facts after a quick profile under a new plan, with the old values for everything it does not measure.

    Args:
        old: The facts under the previous plan.
        answer: The answer to the `profile` command.
        adopted: What changed.
    """
    measured, skipped = answer["facts"], answer.get("skipped", {})
    known = {name: getattr(old, name) for name in (*UNCHANGED, *skipped.get("facts", ()))}
    if old.job.in_script:
        known |= carried_events(old, measured)
    else:
        known |= kept_event_facts(old, measured["step_ms"], event=adopted.event, lost_s=adopted.lost_s)
    job = {**answer["profile"]["job"], **{name: getattr(old.job, name) for name in skipped.get("job", ())}}
    return Facts(machine=old.machine, job=JobFacts(**job), **{**measured, **known})


def updated_phases(facts: Facts, phases: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the phases after a quick profile.

    A profile of a script sees validation and checkpoints as they come, so they take the share of `facts`. That of a job does
    not run them: they have no share then.
    """
    shares = {name: share for name, share in phases.items() if name not in EVENTS}
    events = {name: facts.epoch_frac(getattr(facts, f"{name}_s")) for name in EVENTS} if facts.job.in_script else {}
    rest = (1.0 - sum(events.values())) / max(sum(shares.values()), 1e-9)
    return {name: share * rest for name, share in shares.items()} | events
