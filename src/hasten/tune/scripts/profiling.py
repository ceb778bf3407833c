"""Profile a script in its trial: unmodified, with replayed batches, silent; then operators and samples. It never rewinds."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import _tensor_str as tensor_str
from torch.profiler import ProfilerActivity, profile

from hasten.core.card import Trait
from hasten.core.errors import TrialError
from hasten.core.facts import Facts, JobFacts
from hasten.core.machine import read_machine
from hasten.profile.alternatives import FORM_WORDS, Form, Overhead, optimizer_gains, process_forms, typical_s
from hasten.profile.diagnosis import Diagnosis
from hasten.profile.measure import Profile
from hasten.profile.probes import (
    bf16_matmul_gain,
    installed_packages,
    job_facts,
    memory_limit_bytes,
    peak_memory_bytes,
    reset_peak_memory,
)
from hasten.script.data.purity import Purity, loader_facts, measure_purity
from hasten.script.data.tables import gathered
from hasten.script.entry.isolation import silence
from hasten.script.patches import Patches
from hasten.script.plan.host import Host
from hasten.script.watch.fetch import Fetch
from hasten.script.watch.operators import Tracer
from hasten.script.watch.padding import Padding
from hasten.script.watch.profile import make_profile, phase_seconds, update_s, wants_cut, wants_silence, wants_trace
from hasten.script.watch.record import Recorder, report
from hasten.script.watch.replay import Replay
from hasten.script.watch.seams import Seams
from hasten.train.trace import read_shares

LEAST_STEPS, MOST_STEPS = 12, 400
"""Minimum and maximum number of steps to observe."""
FORM_FRAC, FORM_STEPS = 0.5, 4
"""Share of forward and backward above which other process states are tried, and the minimum number of steps of each try."""
SCRIPT_SLICES = 4
"""A script is observed for this multiple of a job's measured run, because its pauses are part of the measurement."""
SPREAD = 7919
"""Distance in rows between the samples of a test batch, which makes it similar to a shuffled one."""
SAMPLED = 8
"""Number of samples that are read twice to see whether they repeat."""
PLENTY = 1 << 30
"""Planned updates assumed for a script. The real number is unknown; this assumes more than an epoch."""

NOT_IN_QUICK = {
    "facts": ("sample_bytes", "load_frac"),
    "job": ("samples_vary", "has_deterministic_transform", "load_is_random", "collate_is_random", "stacks_samples"),
}
"""Facts that a quick profile of a script does not measure, because no change of plan alters them."""

Steps = Generator[None, None, dict[str, Any]]
"""A running command. Each `yield` lets the script do a step; the return value is the answer."""


class ScriptEnded(Exception):  # noqa: N818 - not an error: scripts end
    """Thrown into a command that waits for a step when the script has ended."""


def profile_script_steps(host: Host, *, slice_s: float, quick: bool, progress: Callable[[str], None]) -> Steps:
    """Profile a script from its present step.

    Args:
        host: The script's live job.
        slice_s: About a quarter of the seconds that each measured run may take.
        quick: Skip everything that a change of plan does not alter.
        progress: Called with a message about the current measurement.

    Raises:
        TrialError: The script ended before enough steps were observed.
    """
    started, seconds = perf_counter(), SCRIPT_SLICES * slice_s
    reset_peak_memory()
    progress("the unmodified script")
    before = host.backwards
    real = yield from _observe(host, seconds)
    backwards, memory = host.backwards - before, peak_memory_bytes()
    replay: dict[str, Any] | None = None
    silent: dict[str, Any] | None = None
    cut: dict[str, Any] | None = None
    if not real["ended"]:
        progress("what if data loading were free")
        replay = yield from _unless_ended(_observe(host, seconds, replay=True))
        if wants_silence(real):
            progress("what if nothing were printed, logged or saved")
            silent = yield from _unless_ended(_observe(host, seconds, silent=True))
        if wants_cut(real):
            progress("what if there were no padding")
            cut = yield from _unless_ended(_observe(host, seconds, padding=Padding(cuts=True)))
    trace = None
    if not real["ended"] and wants_trace(real):
        progress("which operators run")
        trace = yield from _traced(host)
    summary = make_profile(real, replay, silent, cut, trace)
    forms: dict[str, float] = {}
    op_frac: dict[str, float] = {}
    op_counts: dict[str, int] = {}
    purity = Purity()
    if not quick and not real["ended"]:
        progress("operators")
        op_frac, op_counts = yield from _operators(host)
        progress("samples")
        purity = _purity(host)
        progress("other implementations of the optimizer step")
        whole, steps = phase_seconds(real)
        forms = {**optimizer_gains(host.live, whole["optimizer"] / steps), **_table_gain(host)}
        if summary["phases"]["forward"] + summary["phases"]["backward"] > FORM_FRAC:
            for name, form in process_forms(summary["device"], read_machine().cores.value, op_counts).items():
                progress(FORM_WORDS[name])
                gain = yield from _gain_within(host, slice_s, form)
                if gain is None:
                    break
                forms[name] = gain
    facts = _facts(host, real, summary, purity, memory)
    facts = replace(
        facts,
        job=replace(facts.job, accumulation=max(round(backwards / max(real["steps"], 1)), 1)),
        op_frac=op_frac,
        op_counts=op_counts,
        form_gains=forms,
        bf16_matmul_gain=None if quick else bf16_matmul_gain(host.live.device),
    )
    profiled = Profile(
        facts=facts,
        phases=summary["phases"],
        diagnosis=Diagnosis.from_dict(summary["bottleneck"]),
        own_cost_frac=summary["own_cost_frac"],
        seconds=perf_counter() - started,
    ).to_dict()
    sent = {name: getattr(facts, name) for name in facts.__dataclass_fields__ if name not in ("machine", "job")}
    script = {"where": summary["where"], "steps": host.steps, "ended": real["ended"]}
    skipped = NOT_IN_QUICK if quick else {}
    return {"profile": {**profiled, **script}, "facts": sent, "skipped": skipped}


def _observe(
    host: Host,
    seconds: float,
    *,
    replay: bool = False,
    silent: bool = False,
    padding: Padding | None = None,
    least: int = LEAST_STEPS,
) -> Steps:
    """Observe steps for about `seconds`. Return the result of `hasten.script.watch.record.report`.

    Raises:
        TrialError: The script ended before enough steps were observed.
    """
    recorder = Recorder(updates=0, seconds=0.0)
    replayed = Replay(recorder) if replay else None
    fetch = Fetch(recorder, host.trained, replayed, padding, host.scratch)
    seams, quiet, ended = Seams(recorder, fetch), Patches(), False
    seams.on_failure = traceback.print_exc  # to the log of the trial
    texts: list[float] = []
    compiled = host.plan.has(Trait.COMPILES)
    with ExitStack() as stack:
        overhead = stack.enter_context(Overhead())
        stack.callback(seams.remove)
        stack.callback(quiet.restore)
        if silent:
            silence(quiet)
        seams.install(hooks=False, tensor_methods=not compiled)
        quiet.put(tensor_str, "_Formatter", _timed_widths(texts))
        host.watching = seams
        started = perf_counter()
        try:
            while len(recorder.steps) < least or perf_counter() - started < seconds:
                yield
                if len(recorder.steps) >= MOST_STEPS:
                    break
        except ScriptEnded:
            if len(recorder.steps) < least:
                message = f"The script ended after {host.steps} steps, too few to measure. Give it more data or more epochs."
                raise TrialError(message, kind="raised") from None
            ended = True
        finally:
            host.watching = None
            recorder.active = False
    more: dict[str, Any] = {
        "device": host.live.device.type, "rank": 0, "padding_frac": fetch.padding.frac, "tensor_texts_s": sum(texts),
        "collecting_frac": overhead.collecting_s / max(perf_counter() - started, 1e-9), "kernel_frac": overhead.kernel_frac,
    }  # fmt: skip
    return report(recorder, ended=ended, **more)


def _traced(host: Host) -> Steps:
    """Trace the operators of a few steps. Returns observations with `operators`."""
    recorder = Recorder(updates=0, seconds=0.0)
    seams, tracer = Seams(recorder, Fetch(recorder, host.trained)), Tracer(recorder)
    seams.on_failure = traceback.print_exc  # as above
    seams.install(hooks=False, tensor_methods=not host.plan.has(Trait.COMPILES))
    host.watching = seams
    try:
        while not tracer.done:
            yield
    except ScriptEnded:
        pass
    finally:
        host.watching = None
        recorder.active = False
        seams.remove()
        tracer.finish()
    return {"operators": tracer.found}


def _unless_ended(steps: Steps) -> Generator[None, None, dict[str, Any] | None]:
    """Return the result of observing these steps; None if the script ends too early."""
    try:
        return (yield from steps)
    except TrialError:
        return None


def _gain_within(host: Host, seconds: float, form: Form) -> Generator[None, None, float | None]:
    """Return how much faster the script's steps are in another process state, measured between two runs without it.

    None if the script ends before the measurement is complete.
    """
    looks: list[float] = []
    for within in (False, True, False):
        with form() if within else nullcontext(enter_result=True) as can:
            if not can:
                return 1.0
            observed = yield from _unless_ended(_observe(host, seconds, least=FORM_STEPS))
        if observed is None or observed["ended"]:
            return None
        looks.append(update_s(observed))
    return (looks[0] + looks[2]) / 2 / max(looks[1], 1e-9)


def _table_gain(host: Host) -> dict[str, float]:
    """Return how much faster a batch of an in-memory table is gathered at once than row by row; {} for other data."""
    live = host.live
    dataset, collate, size = live.dataset, live.pipeline.collate, live.job.batch_size
    if not live.pipeline.is_table or dataset is None or not live.num_samples:
        return {}
    rows = [number * SPREAD % live.num_samples for number in range(size)]
    cpu = torch.device("cpu")
    one_by_one_s = typical_s(lambda: collate([dataset[row] for row in rows]), cpu)
    return {"gather": one_by_one_s / typical_s(lambda: gathered(dataset, rows), cpu)}


def _timed_widths(taken: list[float]) -> Callable[[Any], Any]:
    """Wrap torch's tensor formatter: record the seconds it needs to format tensors of several numbers."""

    def formatter_seam(original: Any) -> Any:
        class Timed(original):  # type: ignore[misc]  # of torch's, which has no types
            def __init__(self, tensor: Any) -> None:
                started = perf_counter()
                super().__init__(tensor)
                if tensor.numel() > 1:
                    taken.append(perf_counter() - started)

        return Timed

    return formatter_seam


def _operators(host: Host) -> Generator[None, None, tuple[dict[str, float], dict[str, int]]]:
    """Return the share of operator time and the calls of each operator in one step; empty if the script has ended."""
    on_device = host.live.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_device else [])
    try:
        yield  # `_traced` may have stopped a profiler within this step: PyTorch can crash if the next one starts in it too
        with profile(activities=activities) as profiler:
            yield
    except ScriptEnded:
        return {}, {}
    return read_shares(profiler, on_device=on_device)


def _purity(host: Host) -> Purity:
    """Measure whether the samples of the script's training data repeat."""
    live = host.live
    if live.dataset is None or not live.num_samples:
        return Purity()
    every = max(live.num_samples // SAMPLED, 1)
    return measure_purity(live.dataset, live.pipeline.collate, list(range(0, live.num_samples, every))[:SAMPLED])


def _facts(host: Host, real: dict[str, Any], summary: dict[str, Any], purity: Purity, memory: int) -> Facts:
    """Return the facts about a script. Its epoch is the observed stretch, and events in it take their share of that."""
    live, machine = host.live, read_machine()
    names = real["phases"]
    total = {name: sum(step[at] for step in real["seconds"]) for at, name in enumerate(names)}
    return Facts(
        machine=machine,
        job=_job_facts(host, purity, real["padding_frac"]),
        step_ms=summary["step_ms"],
        phase_frac=summary["phases"],
        ceilings=summary["ceilings"],
        sample_bytes=purity.sample_bytes,
        excess_padding_frac=real["padding_frac"],
        load_frac=purity.load_frac,
        input_wait_frac=real["fetch_wait_frac"] or 0.0,
        peak_memory_bytes=memory,
        memory_limit_bytes=memory_limit_bytes(live.device, machine.memory_limit_bytes.value),
        packages=installed_packages(),
        epoch_s=sum(total.values()),
        checkpoint_s=total["checkpoint"],
        checkpoint_bytes=3 * sum(p.numel() * p.element_size() for p in live.model.parameters()),
        validation_s=total["validation"],
        collecting_frac=real["collecting_frac"],
        kernel_frac=real["kernel_frac"],
        tensor_texts_s=real["tensor_texts_s"],
    )


def _job_facts(host: Host, purity: Purity, padding_frac: float) -> JobFacts:
    live = host.live
    facts = job_facts(live)
    fused = all(bool(group.get("fused")) for group in live.optimizer.param_groups)
    return replace(
        facts, **loader_facts(live, purity), padding_seen=padding_frac > 0, optimizer_fused=fused, planned_updates=PLENTY,
        has_quality=False, zero_grad_to_none=live.zero_grad_to_none,
    )  # fmt: skip
