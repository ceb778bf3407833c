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
    prepare,
)
from hasten.check.result import CheckResult, Side, changed_phase, conclude_twice, memory_change
from hasten.check.subject import Subject, environment_differences
from hasten.core.errors import HastenError
from hasten.core.stats import ALPHA, LOOKS, Interval, Verdict, judge, t_quantile
from hasten.train.process_group import read_shared_machine
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
) -> list[Sample]:
    """Measure the working folder in pairs of processes, the conditions under which stored samples were measured.

    Raises:
        TrialError: It does not train.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-") as scratch:
        setting = subject.setting(Path(scratch), CANDIDATE, lambda words: say(f"  {words}"))
        design = design_of({"A": prepared, "B": prepared}, options, deadline, of_script=bool(subject.command))
        design = replace(design, quality=None, looks=LOOKS[:1], seed=design.seed + session * SESSION_SEEDS)
        return compare_settings({"A": setting, "B": setting}, design, say).samples


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
    subject: Subject, records: Sequence[Record], path: Path, candidate: Side, options: Options,
    *, say: Callable[[str], None] = lambda _: None,
) -> CheckResult:  # fmt: skip
    """Compare the working folder with stored records, and repeat a slower verdict with fresh processes.

    Args:
        subject: What to run.
        records: The records of the baseline file; if there are none, the working folder is only measured.
        path: The baseline file.
        candidate: The name of the working folder's version.
        options: How the check is run.
        say: Called with a message at each step.

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
    base = stored[-1] if stored else None
    drift = drift_frac(stored)
    floor = max(options.floor_frac, DRIFT_FRAC if drift is None else drift)
    taken: list[Sample] = []
    found: list[tuple[Verdict, Interval | None]] = []
    for session, share in enumerate((FIRST_FRAC, 1.0)):
        samples = measure(subject, prepared, options, deadline=started + share * options.budget_s, say=say, session=session)
        taken += samples
        found.append(_judged(base, samples, floor))
        if found[-1][0] is not Verdict.SLOWER:
            break
    times, peaks = pair_times(taken), [float(sample.peak_bytes or 0) for sample in taken]
    described = prepared.described
    verdict, why = conclude_twice(found, f"noise floor {floor:.1%}")
    if base is None:
        why = f"{path} had no samples to compare with"
    elif verdict is Verdict.UNDECIDED and len(found) == 1:
        why = "the interval allows more than one verdict" if found[0][1] else "too few pairs were undisturbed"
    source = "this machine's usual drift" if drift is None else f"the drift seen in {len(stored)} recorded sessions"
    weaker = (
        f"weaker evidence: both were not measured side by side, so changes below {floor:.1%} ({source}) cannot be "
        f"distinguished from drift. With --against, changes of {options.floor_frac:.1%} can."
    )
    enough = base is not None and len(base.seconds_per_item) > 1 and len(times) > 1
    return CheckResult(
        target=subject.name,
        method=f"{len(times)} pairs of processes against stored samples of {base.when}"
        if base
        else f"{len(times)} pairs of processes",
        verdict=verdict,
        why=why,
        interval=unpaired_interval(base.seconds_per_item, times, 1.0 - ALPHA) if base and enough else None,
        floor_frac=floor,
        base=Side(
            name=f"stored samples of {(base.commit or 'no commit')[:12]}" if base else "nothing",
            commit=base.commit if base else None,
        ),
        candidate=candidate,
        phases=changed_phase(base.phases_ms, prepared.phases_ms, verdict) if base and base.phases_ms else None,
        memory=memory_change(base.peak_bytes, peaks) if base else None,
        environment=tuple(environment_differences(base.environment, described)) if base else (),
        warnings=(weaker,) if base else (),
        machine=machine,
        measured={
            "seconds_per_item": times,
            "peak_bytes": peaks,
            "phases_ms": prepared.phases_ms,
            "environment": {name: described[name] for name in ("python", "threads", "packages")},
        },
        seconds=monotonic() - started,
    )


def _judged(base: Record | None, samples: Sequence[Sample], floor: float) -> tuple[Verdict, Interval | None]:
    times = pair_times(samples)
    if base is None or len(times) < 2 or len(base.seconds_per_item) < 2:
        return Verdict.UNDECIDED, None
    interval = unpaired_interval(base.seconds_per_item, times, 1.0 - ALPHA)
    return judge(interval, floor), interval
