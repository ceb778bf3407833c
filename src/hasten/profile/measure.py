"""Profile a live job: phases, ceilings, bottleneck, memory, and the overhead of measuring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from hasten.core.facts import Facts
from hasten.core.machine import read_machine
from hasten.profile.alternatives import FORM_WORDS, optimizer_gains, process_forms
from hasten.profile.ceilings import CeilingRun, gain_within, measure_ceilings
from hasten.profile.diagnosis import Diagnosis, diagnose
from hasten.profile.periodic import Around, measure_around
from hasten.profile.probes import (
    InputProbe,
    bf16_matmul_gain,
    counted_frac,
    installed_packages,
    job_facts,
    memory_limit_bytes,
    peak_memory_bytes,
    probe_input,
    reset_peak_memory,
)
from hasten.train.clock import NoClock, make_clock
from hasten.train.loop import Loop
from hasten.train.trace import first_batches, op_shares

MIN_UPDATES, MAX_UPDATES = 4, 400
"""Updates of each measured run."""
WARMUP_UPDATES = 2
PROBE_BATCHES = 8
"""Maximum number of batches in the input probe."""
PROBE_SECONDS = 1.0
"""Approximate length of the input probe in seconds."""
COUNTED_BATCHES = 4
COST_TURNS = 21
"""Number of turns with and without the clock."""
SHORT_UPDATE_S = 0.02
"""Updates longer than this are not timed with and without the clock."""
FORM_S = 0.5
"""Approximate seconds of updates to run in another process state, and before and after it."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile, as `hasten profile` shows it.

    Attributes:
        facts: Everything that a `fit` may use.
        phases: Phase name -> share of wall time; sums to 1.
        diagnosis: The bottleneck.
        own_cost_frac: Overhead of Hasten's clock, as a share of an update.
        seconds: How long profiling took.
        validation_batches: Held-out batches in one pass; 0 if there are none or they were not measured.
        validation_batch_s: Seconds of one of them.
    """

    facts: Facts
    phases: dict[str, float]
    diagnosis: Diagnosis
    own_cost_frac: float
    seconds: float
    validation_batches: int = 0
    validation_batch_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON: `bottleneck`, `phases` and `ceilings` as in the evidence file, and all other measurements."""
        facts = self.facts
        return {
            "bottleneck": {"name": str(self.diagnosis.name), "share": self.diagnosis.share, "words": self.diagnosis.words},
            "phases": self.phases,
            "ceilings": dict(facts.ceilings),
            "step_ms": facts.step_ms,
            "own_cost_frac": self.own_cost_frac,
            "straggler": facts.straggler,
            "memory": {"peak_bytes": facts.peak_memory_bytes, "limit_bytes": facts.memory_limit_bytes},
            "validation": {"batches": self.validation_batches, "batch_s": self.validation_batch_s},
            "around": {
                "epoch_s": facts.epoch_s,
                "report_s": facts.report_s,
                "reports_per_epoch": facts.reports_per_epoch,
                "checkpoint_s": facts.checkpoint_s,
                "validation_s": facts.validation_s,
            },
            "job": asdict(facts.job),
            "machine": {**facts.machine.to_dict(), "summary": facts.machine.summary()},
            "seconds": self.seconds,
        }


def profile_loop(
    loop: Loop,
    *,
    slice_s: float = 2.5,
    quick: bool = False,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Profile the job of a loop. The loop is at the start of its run afterwards.

    Args:
        loop: The loop; its position is lost.
        slice_s: Approximate seconds of each measured run.
        quick: Skip everything that a change of plan does not alter (validation, checkpoint, matrix products, operators).
        folder: Where the run will write; the current folder by default.
        progress: Called with a message about the current measurement.
    """
    started = perf_counter()
    live, machine = loop.live, read_machine()
    progress("warming up")
    loop.rewind()
    loop.run(1)
    reset_peak_memory()
    before = perf_counter()
    loop.run(WARMUP_UPDATES)
    update_s = loop.ranks.agreed(max((perf_counter() - before) / WARMUP_UPDATES, 1e-6))
    updates = int(min(max(slice_s / update_s, MIN_UPDATES), MAX_UPDATES))
    run = measure_ceilings(loop, updates, progress)
    memory = peak_memory_bytes()
    probe = _probe(loop, run)
    around = Around() if quick else measure_around(loop, progress, folder=folder)
    phases = phase_shares(run, around)
    op_frac: dict[str, float] = {}
    op_counts: dict[str, int] = {}
    forms: dict[str, float] = {}
    if not quick:
        progress("operators")
        op_frac, op_counts = op_shares(live, first_batches(loop, 1)[0])
        loop.rewind()
        progress("other implementations of the optimizer step")
        forms = optimizer_gains(live, run.phase_s["optimizer"] / run.updates)
        few = min(updates, max(int(FORM_S / update_s), 2))
        for name, form in process_forms(live.device.type, machine.cores.value, op_counts).items():
            progress(FORM_WORDS[name])
            forms[name] = gain_within(loop, few, form)
    straggler = loop.ranks.straggler(run.phase_s["forward"] + run.phase_s["backward"])
    facts = Facts(
        machine=machine,
        job=job_facts(live),
        step_ms=run.real_s / run.updates * 1e3,
        phase_frac={name: seconds / run.real_s for name, seconds in run.phase_s.items()},
        ceilings=run.ceilings,
        op_frac=op_frac,
        op_counts=op_counts,
        form_gains=forms,
        collecting_frac=run.collecting_frac,
        kernel_frac=run.kernel_frac,
        padding_frac=probe.padding_frac,
        excess_padding_frac=probe.excess_padding_frac,
        counted_frac=_counted_frac(loop),
        sample_bytes=probe.sample_bytes,
        load_frac=probe.load_frac,
        input_wait_frac=probe.wait_frac or 0.0,
        bf16_matmul_gain=None if quick else bf16_matmul_gain(live.device),
        peak_memory_bytes=memory,
        straggler=straggler,
        memory_limit_bytes=memory_limit_bytes(live.device, machine.memory_limit_bytes.value),
        **around.facts(run.real_s / run.updates),
        packages=installed_packages(),
    )
    cost = 0.0 if quick else own_cost_frac(loop, update_s, progress)
    loop.rewind()
    diagnosis = diagnose(phases, run.ceilings, wait_frac=probe.wait_frac, straggler=straggler)
    return Profile(
        facts=facts,
        phases=phases,
        diagnosis=diagnosis,
        own_cost_frac=cost,
        seconds=perf_counter() - started,
        validation_batches=around.validation_batches,
        validation_batch_s=around.validation_batch_s,
    )


def phase_shares(run: CeilingRun, around: Around) -> dict[str, float]:
    """Return phase name -> share of an epoch's wall time; the share that no phase explains is `other`."""
    epoch_updates = around.epoch_updates or run.updates
    update_s = run.real_s / run.updates
    reports_s = around.reports_s(update_s)
    total = update_s * epoch_updates + around.validation_s + around.checkpoint_s + reports_s
    shares = {name: seconds / run.updates * epoch_updates / total for name, seconds in run.phase_s.items()}
    shares["logging"] = shares.get("logging", 0.0) + reports_s / total
    shares["validation"] = around.validation_s / total
    shares["checkpoint"] = around.checkpoint_s / total
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    return shares


def own_cost_frac(loop: Loop, update_s: float, progress: Callable[[str], None]) -> float:
    """Return the overhead of the phase clock, as a share of an update.

    Short updates run with and without the clock, in turns. For long ones the same turns would measure the machine's noise,
    so the clock's own calls are timed and compared to the update.
    """
    progress("Hasten's own overhead")
    if update_s >= SHORT_UPDATE_S:
        clock, calls, laps = make_clock(loop.live.device), 2000, 6
        started = perf_counter()
        for _ in range(calls):
            clock.start()
            for _ in range(laps):
                clock.lap("forward")
        return (perf_counter() - started) / calls / update_s
    ratios = []
    per_turn = max(int(0.05 / update_s), 5)
    loop.rewind()
    loop.run(per_turn)
    for turn in range(COST_TURNS):
        seconds = {}
        for watched in (True, False) if turn % 2 else (False, True):
            loop.clock = make_clock(loop.live.device) if watched else NoClock()
            started = perf_counter()
            loop.run(per_turn)
            seconds[watched] = perf_counter() - started
        ratios.append(seconds[True] / seconds[False])
    loop.clock = NoClock()
    return max(median(ratios) - 1.0, 0.0)


def _probe(loop: Loop, run: CeilingRun) -> InputProbe:
    batch_s = max(run.data_s / (run.updates * loop.live.batches_per_update), 1e-6)
    count = int(min(max(PROBE_SECONDS / batch_s, 2), PROBE_BATCHES))
    wanted = loop.upcoming(count)[:count]
    return probe_input(loop.live, wanted) if wanted else InputProbe()


def _counted_frac(loop: Loop) -> float:
    """Return the share of positions that the loss uses in the first batches of the run; 1 if the job does not define it."""
    if not loop.live.job.overrides("counted"):
        return 1.0
    return counted_frac(loop.live, [batch for batch, _ in first_batches(loop, COUNTED_BATCHES)])
