"""Compare the working folder with stored samples of the same machine. Needs no other version, but is weaker evidence.

Stored samples come from another time, and a machine's speed drifts between sessions by more than most changes cost. So the
floor is the drift, the interval is that of unpaired samples (Welch), and samples of another machine are refused.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from hasten.check.history import Record, drift_frac
from hasten.check.paired import (
    FIRST_FRAC,
    SESSION_SEEDS,
    Options,
    Prepared,
    compare_settings,
    design_of,
    machine_of,
    measured_of,
    prepare,
)
from hasten.check.repository import Version
from hasten.check.result import CheckResult, changed_phase, conclude, memory_change
from hasten.check.subject import Subject, environment_differences
from hasten.core.errors import HastenError
from hasten.core.stats import ALPHA, LOOKS, Interval, Verdict, judge, t_quantile
from hasten.train.process_group import read_shared_machine
from hasten.tune.proof.compare import Comparison
from hasten.tune.trials.samples import Sample

DRIFT_FRAC = 0.07
"""How far two sessions of one commit may differ if no history tells: the largest difference that was seen between processes
of the same code on the machines that Hasten was measured on."""
CANDIDATE = "The candidate"


def choose_baseline(records: Sequence[Record], subject: Subject, machine: Mapping[str, Any], path: Path) -> list[Record]:
    """Return the stored records that may be compared with, oldest first.

    Raises:
        HastenError: There is none of this target, or none of this machine.
    """
    own = [record for record in records if record.target == subject.name]
    if not own:
        others = ", ".join(sorted({record.target for record in records})) or "nothing"
        raise HastenError(f"{path} has no samples of {subject.name}. It has: {others}. Record some with --record.")
    here = [record for record in own if record.fingerprint == machine["fingerprint"]]
    if not here:
        stored = own[-1].machine
        raise HastenError(
            f"The samples of {subject.name} in {path} are of another machine ({stored.get('summary')}), and this one is "
            f"{machine['summary']}. Times of different machines are never compared. Record samples here, or use --against."
        )
    return here


def unpaired_interval(base_s: Sequence[float], candidate_s: Sequence[float], confidence: float) -> Interval:
    """Return the ratio of two unpaired samples with Welch's interval on the logarithmic scale.

    The degrees of freedom are rounded down, which makes the interval wider.

    Raises:
        ValueError: There are fewer than two times of either.
    """
    logs = [[math.log(time) for time in times] for times in (base_s, candidate_s)]
    means = [statistics.fmean(values) for values in logs]
    errors = [statistics.variance(values) / len(values) for values in logs]
    total = sum(errors)
    parts = sum(error**2 / (len(values) - 1) for error, values in zip(errors, logs, strict=True))
    dof = max(int(total**2 / parts), 1) if parts else len(logs[0]) + len(logs[1]) - 2
    half = t_quantile(0.5 + confidence / 2.0, dof) * math.sqrt(total)
    mean = means[0] - means[1]
    pairs = min(len(base_s), len(candidate_s))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(min(mean + half, 700.0)), pairs, confidence)


def measure(
    subject: Subject, prepared: Prepared, options: Options, *, deadline: float, say: Callable[[str], None], session: int = 0
) -> Comparison:
    """Measure the working folder in pairs of processes, the conditions under which stored samples were measured.

    Raises:
        TrialError: It does not train.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-") as scratch:
        setting = subject.setting(Path(scratch), CANDIDATE, lambda words: say(f"  {words}"))
        design = design_of({"A": prepared, "B": prepared}, options, deadline, of_script=bool(subject.command))
        design = replace(design, quality=None, looks=LOOKS[:1], seed=design.seed + session * SESSION_SEEDS)
        return compare_settings({"A": setting, "B": setting}, design, say)


def pair_times(samples: Sequence[Sample]) -> list[float]:
    """Return the time of each undisturbed pair: the geometric mean of its two processes, which share its conditions."""
    pairs: dict[int, list[Sample]] = {}
    for number, sample in enumerate(samples):
        pairs.setdefault(number // 2, []).append(sample)
    return [
        math.exp(statistics.fmean(math.log(sample.seconds_per_item) for sample in both))
        for both in pairs.values()
        if not any(sample.spoilt for sample in both)
    ]


def check_stored(
    subject: Subject, records: Sequence[Record], path: Path, candidate: Version, options: Options,
    *, say: Callable[[str], None] = lambda _: None,
) -> CheckResult:  # fmt: skip
    """Compare the working folder with the records of a baseline file, and repeat a slower verdict with fresh processes.

    Without records, the working folder is only measured.

    Raises:
        TrialError: It does not train.
        HastenError: No record may be compared with.
    """
    started = monotonic()
    machine = machine_of(read_shared_machine(subject.ranks))
    stored = choose_baseline(records, subject, machine, path) if records else []
    say("measuring the phases")
    with tempfile.TemporaryDirectory(prefix="hasten-") as scratch:
        prepared = prepare(subject.setting(Path(scratch), CANDIDATE, lambda words: say(f"  {words}")), options)
    base, drift = stored[-1] if stored else None, drift_frac(stored)
    floor = max(options.floor_frac, DRIFT_FRAC if drift is None else drift)
    sessions: list[Comparison] = []
    for number, share in enumerate((FIRST_FRAC, 1.0)):
        measured = measure(subject, prepared, options, deadline=started + share * options.budget_s, say=say, session=number)
        sessions.append(judged(base, measured, floor))
        if sessions[-1].verdict is not Verdict.SLOWER:
            break
    taken = [sample for session in sessions for sample in session.samples]
    times, peaks = pair_times(taken), [float(sample.peak_bytes or 0) for sample in taken]
    verdict, why = conclude(sessions)
    result = CheckResult(
        target=subject.name,
        method=f"{len(times)} pairs of processes",
        verdict=verdict,
        why=why if base else f"{path} had no samples to compare with",
        interval=None,
        floor_frac=floor,
        base=Version(name="nothing", commit=None),
        candidate=candidate,
        machine=machine,
        measured=measured_of(times, peaks, prepared),
        seconds=monotonic() - started,
    )
    if base is None:
        return result
    source = "this machine's usual drift" if drift is None else f"the drift seen in {len(stored)} recorded sessions"
    weaker = (
        f"weaker evidence: both were not measured side by side, so changes below {floor:.1%} ({source}) cannot be "
        f"distinguished from drift. With --against, changes of {options.floor_frac:.1%} can."
    )
    return replace(
        result,
        method=f"{result.method} against stored samples of {base.when}",
        interval=_interval(base, taken),
        base=Version(name=f"stored samples of {(base.commit or 'no commit')[:12]}", commit=base.commit),
        phases=changed_phase(base.phases_ms, prepared.phases_ms, verdict) if base.phases_ms else None,
        memory=memory_change(base.peak_bytes, peaks),
        environment=tuple(environment_differences(base.environment, prepared.described)),
        warnings=(weaker,),
    )


def judged(base: Record | None, measured: Comparison, floor: float) -> Comparison:
    """Return what was measured with its verdict against a record instead of that between its own two arms."""
    interval = _interval(base, measured.samples) if base else None
    verdict = judge(interval, floor) if interval else Verdict.UNDECIDED
    why = "the interval allows more than one verdict" if verdict is Verdict.UNDECIDED else f"noise floor {floor:.1%}"
    return replace(measured, interval=interval, verdict=verdict, why=why if interval else "too few pairs were undisturbed")


def _interval(base: Record, samples: Sequence[Sample]) -> Interval | None:
    times = pair_times(samples)
    if min(len(times), len(base.seconds_per_item)) < 2:
        return None
    return unpaired_interval(base.seconds_per_item, times, 1.0 - ALPHA)
