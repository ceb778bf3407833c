"""Measure each technique with and without, on a job made for it, where its bottleneck is the only one.

The technique takes the tuner's path. It must fit the job by its own judgement of measured facts, a traced step must show
that its mechanism fired, and losses and gradients must stay within its numerics class. A technique that fails earlier is
recorded with the reason. The result is a paired comparison in fresh processes, like a tuning's final proof, by the time of
updates. Techniques that change how much an update learns are compared by the time to a validation target over whole runs.
Techniques that only change events around updates are compared by the time of an epoch, between two resident processes that
take turns.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from benchmarks.record import RESULTS, measured_commit, record
from benchmarks.rows import Row, Rows
from benchmarks.technique_cases import CASES, Case
from hasten.core.card import Judge, Numerics
from hasten.core.errors import HastenError, JobError, MachineError
from hasten.core.facts import Facts, JobFacts
from hasten.core.machine import read_machine
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.optimizations import catalogue
from hasten.tune.proof.compare import Comparison, compare, held_out_verdict
from hasten.tune.proof.numerics import MIN_UPDATES, judge_exact
from hasten.tune.proof.time_to_target import TargetComparison
from hasten.tune.proof.whole_runs import TargetDesign, compare_to_target
from hasten.tune.search.event_screening import screen_event
from hasten.tune.search.job_processes import JobProcesses
from hasten.tune.search.screening import FUTILE_TURNS, Screen, Screening
from hasten.tune.trials.pair import Design, turns_that_fit
from hasten.tune.trials.samples import MIN_BLOCK_UPDATES, NUM_BLOCKS
from hasten.tune.trials.trial import Trial, TrialSetting

PAIRS = 5
UPDATES, EPOCH, TARGET = "the time of updates", "the time of an epoch", "the time to a target"
"""Compared quantities."""
ENOUGH_FOR_BLOCKS = NUM_BLOCKS * MIN_BLOCK_UPDATES
"""Number of updates from which the start of loader workers affects one block of several, and not the median."""
MORE_TO_LEARN = 2
"""Factor of updates for techniques that change the mathematics: validation quality is compared at their end."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure.

    Attributes:
        pairs: Pairs of fresh processes.
        arm_s: Counted seconds of the plain job in each process.
        least: Smallest number of updates of each arm.
        gate_s: Seconds of each turn in which losses are compared.
        slice_s: Seconds of each measured run of the profile.
        limit_s: No further pair starts after this number of seconds: other processes may disturb many pairs.
    """

    pairs: int = PAIRS
    arm_s: float = 0.8
    least: int = 6
    gate_s: float = 0.15
    slice_s: float = 0.15
    limit_s: float = 120.0


def run_techniques(pairs: int = PAIRS, only: Sequence[str] = ()) -> Path:
    """Measure all cases, or those whose technique or job is in `only`; other rows of the last result stay.

    Raises:
        HastenError: `only` has a name that is not in the table.
    """
    chosen = [case for case in CASES if not only or {case.technique, case.job, case.job.partition(":")[2]} & {*only}]
    if not chosen:
        known = ", ".join(dict.fromkeys(case.technique for case in CASES))
        raise HastenError(f"No technique or job called {', '.join(only)} is in the table. Choose from: {known}.")
    last = RESULTS / "techniques.json"
    old = json.loads(last.read_text(encoding="utf-8"))["rows"] if only and last.exists() else []
    kept = Rows("-".join(["techniques", *only]).replace(":", "."))
    new = measure(chosen, Effort(pairs=pairs), kept, say=lambda words: print(words, flush=True))
    known_rows = {row["key"]: {name: value for name, value in row.items() if name != "kind"} for row in [*old, *new]}
    rows = [known_rows[case.key] for case in CASES if case.key in known_rows]
    outcomes = dict(Counter(row["verdict"] or row["outcome"] for row in rows))
    path = record("techniques", {"outcomes": outcomes, "rows": rows}, f"python -m benchmarks techniques --count {pairs}")
    kept.finish()
    return path


def measure(chosen: Sequence[Case], effort: Effort, kept: Rows, say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Measure cases, those of one job against the same resident base; stored rows are not measured again."""
    found: dict[str, Row] = {}
    for case in chosen:
        done = kept.of(f"{case.key} {effort.pairs}")
        if done:
            found[case.key] = done[0]
    for job in dict.fromkeys(case.job for case in chosen):
        left = [case for case in chosen if case.job == job and case.key not in found]
        if not left:
            continue
        with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
            for case, row in zip(left, _on_one_job(left, Path(folder), effort), strict=True):
                found[case.key] = kept.add(f"{case.key} {effort.pairs}", row)
                say(f"{len(found)} of {len(chosen)}: {line(row)}")
    return [found[case.key] for case in chosen]


def _on_one_job(cases: Sequence[Case], folder: Path, effort: Effort) -> Iterator[Row]:
    """Yield a row for each case. If the plain job fails, that is the outcome of all."""
    started = monotonic()
    try:
        bench = Bench(cases[0], folder, effort)
    except HastenError as error:
        for case in cases:
            yield _row(case, {"outcome": "failed", "reason": f"the job itself: {error}"}, monotonic() - started)
        return
    with closing(bench):
        for case in cases:
            yield _row(case, bench.outcome(case), monotonic() - started)
            started = monotonic()


class Bench:
    """A job under measurement: its facts, and a resident process that candidates are compared with.

    Args:
        case: Any case of the job.
        folder: Folder for logs and compile caches of the trials.
        effort: How much to measure.

    Raises:
        HastenError: The plain job does not run.
    """

    def __init__(self, case: Case, folder: Path, effort: Effort) -> None:
        self.job, self.effort = case.job_class()(), effort
        self.setting = TrialSetting(target=case.target, folder=folder)
        self.uneven = self.job.overrides("length")
        processes = JobProcesses(setting=self.setting, seed=self.job.seed)
        self.screen = Screen(processes, Plan(), uneven=self.uneven, others=[])
        try:
            answer = self.screen.profile(slice_s=effort.slice_s, quick=False)
        except BaseException:
            self.screen.close()
            raise
        self.facts = Facts(machine=read_machine(), job=JobFacts(**answer["profile"]["job"]), **answer["facts"])

    def close(self) -> None:
        """Stop the resident processes."""
        self.screen.close()

    def outcome(self, case: Case) -> Row:
        """Return the outcome and reason of a case, with fit, evidence, numerics and comparison as far as it came."""
        fit = catalogue()[case.technique].fit(self.facts)
        if not fit.fits:
            return {"outcome": "refused", "reason": fit.reason}
        found: Row = {"could_bring": fit.max_gain}
        try:
            return {**found, **self._tried(case, case.optimization())}
        except MachineError as error:
            return {**found, "outcome": "refused", "reason": str(error)}
        except HastenError as error:
            return {**found, "outcome": "failed", "reason": str(error)}

    def _tried(self, case: Case, optimization: Optimization) -> Row:
        plan, card = Plan(optimizations=(optimization,)), optimization.card
        if card.event:
            return self._by_event(optimization, plan)
        if card.judged_by is Judge.TIME_TO_TARGET:
            return self._to_target(optimization, plan)
        screened = self._screened(optimization, plan)
        found = judged(screened)
        if "outcome" in found:
            return found
        comparison = compare(self.setting, Plan(), plan, self._design(case, card.numerics))
        return {**found, **self._compared(comparison, card.numerics)}

    def _by_event(self, optimization: Optimization, plan: Plan) -> Row:
        """Compare the time of an epoch, for a technique that changes events around updates."""
        turns = max(self.effort.pairs, FUTILE_TURNS)
        screened = screen_event(self.screen, optimization, plan, self.facts, most_turns=turns)
        found = judged(screened)
        if "outcome" in found:
            return found
        peak = screened.peak_bytes
        return {
            **found,
            **figure(screened.comparison, EPOCH),
            "memory": {"without_bytes": peak.get("A"), "with_bytes": peak.get("B")},
            "event": {"lost_s": screened.lost_s, "stall_s": screened.stall_s, "epoch_s": screened.epoch_s},
        }

    def _to_target(self, optimization: Optimization, plan: Plan) -> Row:
        """Compare whole runs by the time until they reach the plain run's result."""
        quality = self.job.quality
        if quality is None:
            raise JobError(f"{type(self.job).__name__} defines no quality, so there is no target: set quality.")
        trial = self.screen.challenge(plan).trial
        evidence = trial.call("trace")["evidence"].get(optimization.card.name, [])
        trial.freeze()
        if why := not_fired(evidence):
            return {"evidence": evidence, "outcome": "failed", "reason": why}
        deadline, looks = monotonic() + self.effort.limit_s, (self.effort.pairs,)
        design = TargetDesign(quality=quality, seed=self.job.seed, looks=looks, deadline=deadline, side_by_side=True)
        comparison = compare_to_target(self.setting, Plan(), plan, design)
        held_out = comparison.held_out
        told = {"metric": quality.metric, "verdict": held_out.verdict, "why": held_out.why} if held_out else None
        return {"evidence": evidence, **figure(comparison, TARGET), "quality": told}

    def _screened(self, optimization: Optimization, plan: Plan) -> Screening:
        """Check evidence, losses and gradients like the tuner; both processes are suspended afterwards."""
        if optimization.card.numerics is Numerics.ROUNDING and not self.screen.others:
            with Trial(self.setting, Plan(), seed=self.job.seed + 1) as trial:
                self.screen.others = [trial.call("run", updates=FUTILE_TURNS * self._updates(self.effort.gate_s))["losses"]]
        updates = self._updates(self.effort.gate_s)
        screened = self.screen.screen(optimization, plan, updates, most_turns=FUTILE_TURNS)
        self.screen.freeze()
        return screened

    def _design(self, case: Case, numerics: Numerics) -> Design:
        facts, training = self.facts, numerics is Numerics.TRAINING
        updates = self._updates(self.effort.arm_s) * (MORE_TO_LEARN if training else 1)
        return Design(
            updates=max(updates, ENOUGH_FOR_BLOCKS) if facts.waits_for_data else updates,
            uneven=self.uneven or case.bursts,
            seed=self.job.seed,
            quality=self.job.quality if training else None,
            looks=(self.effort.pairs,),
            deadline=monotonic() + self.effort.limit_s,
            turns=turns_that_fit(facts),
        )

    def _updates(self, seconds: float) -> int:
        return max(math.ceil(1e3 * seconds / self.facts.step_ms), self.effort.least)

    def _compared(self, comparison: Comparison, numerics: Numerics) -> Row:
        losses = held_against(comparison, numerics)
        found: Row = {"memory": peaks(comparison), "losses": losses}
        if numerics is Numerics.TRAINING and self.job.quality is not None:
            quality = held_out_verdict(comparison, self.job.quality)
            found["quality"] = {"metric": self.job.quality.metric, "verdict": quality.verdict, "why": quality.why}
        found |= figure(comparison, UPDATES)
        if losses["verdict"] == "failed":
            return {**found, "verdict": None, "outcome": "failed", "reason": f"the numbers: {losses['why']}"}
        return found


def not_fired(evidence: Sequence[Row]) -> str:
    """Explain why a mechanism counts as not fired; empty if every check passed."""
    missing = "; ".join(f"{check['name']}: {check['seen']}" for check in evidence if not check["passed"])
    return "" if evidence and not missing else f"the mechanism did not fire: {missing or 'no check'}"


def judged(screened: Screening) -> Row:
    """Return evidence and numerics of a screening, with `outcome` and `reason` if it must stop here."""
    gate = screened.gate
    found: Row = {"evidence": screened.evidence, "setup_s": screened.setup_s}
    if why := not_fired(screened.evidence):
        return {**found, "outcome": "failed", "reason": why}
    found["numerics"] = {"verdict": gate.verdict, "why": gate.why} if gate else None
    if gate is None or gate.verdict == "failed":
        return {**found, "outcome": "failed", "reason": f"the numbers: {gate.why if gate else 'nothing was recorded'}"}
    return found


def figure(comparison: Comparison | TargetComparison, compared: str) -> Row:
    """Return a comparison as recorded, with the compared quantity; without an interval there is no number."""
    told: Row = {"comparison": comparison.to_dict(), "compared": compared, "reason": comparison.why}
    if comparison.interval is None:
        return {**told, "verdict": None, "outcome": "failed"}
    return {**told, "verdict": str(comparison.verdict), "outcome": "measured"}


def held_against(comparison: Comparison, numerics: Numerics) -> Row:
    """Compare the losses of both arms in the first timed pair: `verdict` and `why` for `exact`, and their difference.

    The limit of `rounding` is judged earlier, against random variation; here only the difference is recorded. Under
    `training` the arms see different batches, so their losses do not belong to the same updates.
    """
    plain, changed = comparison.losses["A"], comparison.losses["B"]
    apart = [abs(one - other) for one, other in zip(plain, changed, strict=False)]
    told: Row = {"updates": len(apart), "bit_equal": not any(apart), "largest_difference": max(apart, default=None)}
    if numerics is not Numerics.EXACT or len(apart) < MIN_UPDATES:
        return {
            **told,
            "verdict": None,
            "why": "judged by the gate" if numerics is Numerics.ROUNDING else "too few, or other updates",
        }
    judged = judge_exact(plain, changed)
    return {**told, "verdict": judged.verdict, "why": judged.why}


def peaks(comparison: Comparison) -> Row:
    """Return the median peak memory of a process without and with the technique, in bytes."""
    read = {arm: [s.peak_bytes for s in comparison.samples if s.arm == arm and s.peak_bytes is not None] for arm in "AB"}
    return {
        name: round(statistics.median(read[arm])) if read[arm] else None
        for name, arm in (("without_bytes", "A"), ("with_bytes", "B"))
    }


def _row(case: Case, outcome: Row, seconds: float) -> Row:
    card = catalogue()[case.technique].card
    return {
        "key": case.key,
        "technique": case.technique,
        "settings": case.optimization().settings(),
        "job": f"benchmarks/jobs/{case.job.replace(':', '.py:')}",
        "job_words": case.job_words(),
        "class": str(card.numerics),
        **dict.fromkeys(("verdict", "comparison", "compared", "memory", "evidence", "numerics", "losses", "quality")),
        **outcome,
        "seconds": round(seconds, 1),
        "commit": measured_commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def line(row: Row) -> str:
    """Format a row for the terminal."""
    seen = row["comparison"]
    words = f"{row['outcome']}: {row['reason']}"
    if row["outcome"] == "measured":
        words = f"{row['verdict']} {seen['ratio']:.2f}x ({seen['low']:.2f} to {seen['high']:.2f}), {seen['pairs']} pairs"
        words += "" if row["compared"] == UPDATES else f", {row['compared']}"
        memory = row["memory"] or {}
        if all(memory.get(key) for key in ("without_bytes", "with_bytes")):
            words += f", peak memory {memory['without_bytes'] / 2**20:.0f} to {memory['with_bytes'] / 2**20:.0f} MiB"
    return f"{row['key']}: {words} [{row['seconds']:.0f} s]"
