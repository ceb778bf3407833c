"""Profile a script: run it unchanged, then once for each phase that could be free, and report where its time goes.

A profile contains the share of each phase, the ceilings, the bottleneck, and the source lines that cause it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.core.card import Bottleneck
from hasten.core.errors import TrialError
from hasten.core.facts import MOSTLY_WAITING
from hasten.profile.diagnosis import THRESHOLDS, Diagnosis, Sentence, diagnose
from hasten.script.entry.launch import ELSEWHERE_WORDS, Mode, Seen, Watch, run_watched
from hasten.script.watch import padding, saves
from hasten.script.watch.frameworks import names_of
from hasten.script.watch.memory import steady_growth
from hasten.script.watch.operators import moved
from hasten.script.watch.record import ACTED, CHECKPOINT, LOGGING, VALIDATION, WARMUP_STEPS
from hasten.script.watch.trackers import LABELS

WORTH_A_RUN = 0.01
"""Share of logging from which a run without it is worthwhile."""
WORTH_A_TRACE, MOST_TRACED_S = 0.3, 5.0
"""Share of the passes, the optimizer and the rest from which operators are traced, and the longest step that is traced."""
LEAST_LEFT = 0.01
"""Smallest share of the time besides the model that gives a ceiling for it. The quotient of less is measurement noise."""
WORTH_A_LINE = 0.02
"""Share of the time from which a source line is reported."""
LINES = 8
"""Largest number of source lines reported."""

PYTHON = "Python"
"""What happens at a line that runs between operators."""
PYTHON_WORDS = (
    "{share:.0%} of the time is spent in other code, outside of all measured phases. The line with the largest part of it "
    "({part:.0%} of the time) is {file}:{line}."
)
ACTING_WORDS = (
    "{share:.0%} of the time passes between training steps, from calls of the model without gradients on: it acts in an "
    "environment, generates samples, or is evaluated. The calls begin at {file}:{line}."
)
OVERHEAD_WORDS = (
    "Call overhead takes {over:.0%} of the time, arithmetic inside operators {arithmetic:.0%}: a step calls {calls} "
    "operators, most of them so small that Python and PyTorch's dispatch take longer than the operator itself. Fewer and "
    "larger calls help: larger batches, operations on whole tensors, torch.compile."
)
OTHER_WORDS = "It is spent between the timed places. A Python profiler such as py-spy shows the lines."

STARTING = "start of workers"
STARTING_WORDS = (
    "Worker processes were started {times}. Create the loader and its iterator once, with persistent_workers=True, or use "
    "no workers."
)
READS = (".item()", ".cpu()", ".tolist()")
WRITES = ("print", "logging", "os.fsync", *sorted(LABELS), *names_of(LOGGING))
"""Places where values are read for a report, and places where the report is written."""

CAUSES = {
    Bottleneck.INPUT: ("dataset", "collate", "loader", STARTING),
    Bottleneck.PADDING: ("collate", "loader"),
    Bottleneck.TRANSFER: (".to()", ".cuda()", ".copy_()"),
    Bottleneck.LOGGING: (*READS, *WRITES),
    Bottleneck.OPTIMIZER: ("optimizer",),
    Bottleneck.VALIDATION: ("validation", *names_of(VALIDATION)),
    Bottleneck.CHECKPOINT: (*saves.NAMES, *names_of(CHECKPOINT)),
}
"""Places that explain each bottleneck."""

Seconds = dict[str, float]
Found = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Limits of each run's observation.

    Attributes:
        updates: Maximum number of steps.
        seconds: Maximum number of seconds from the first step on.
    """

    updates: int = 200
    seconds: float = 20.0


def profile_script(
    command: Sequence[str], study: Study | None = None, *, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Profile `python COMMAND`. The output of the first run is shown, that of the other runs is not.

    Raises:
        TrialError: The script failed, or no training was observed.
    """
    study = study or Study()

    said: set[str] = set()

    def say(message: str) -> None:
        if message not in said:
            said.add(message)
            progress(message)

    def run(mode: Mode, *, quiet: bool = True) -> Seen:
        watch = Watch(mode=mode, updates=study.updates, seconds=study.seconds)
        seen = run_watched(command, watch, quiet=quiet, say=say)
        if quiet and seen.interrupted:
            raise KeyboardInterrupt
        return seen

    progress("the unchanged script")
    real = run("profile", quiet=False)
    _check(real)
    if real.failed:  # another run would only fail again
        return {**make_profile(real.ranks[0]), "failed": failure(real)}
    for why in real.failures.values():
        progress(f"not everything could be watched: {why.strip().splitlines()[-1]}")
    progress("what if data were free")
    replay = run("replay")
    silent = None
    if wants_silence(real.ranks[0]):
        progress("what if nothing were printed, logged or saved")
        silent = run("silent")
    cut = None
    if wants_cut(real.ranks[0]):
        progress("what if no position were padding")
        cut = run("cut")
    trace = None
    if wants_trace(real.ranks[0]):
        progress("which operators run")
        trace = run("trace")
    others = (seen.ranks.get(0) if seen else None for seen in (replay, silent, cut, trace))
    return {**make_profile(real.ranks[0], *others), "failed": None}


def failure(seen: Seen) -> dict[str, Any]:
    """Return how a script failed: its `exit_code` (negative for a signal), the name of the `signal`, and the `error`."""
    names = {item.value: item.name for item in signal.Signals}
    code = -signal.SIGINT if seen.interrupted else seen.code
    name = names.get(-code, f"signal {-code}") if code < 0 else None
    return {"exit_code": code, "signal": name, "error": seen.ranks.get(0, {}).get("error")}


def failure_words(failed: Mapping[str, Any]) -> str:
    """Describe the result of `failure` in a sentence."""
    end = f"was ended by {failed['signal']}" if failed["signal"] else f"failed with exit status {failed['exit_code']}"
    return f"The script {end}{': ' + failed['error'] if failed['error'] else ''}."


def phase_seconds(found: Found) -> tuple[Seconds, int]:
    """Return the seconds by phase over the counted steps, and the number of these steps.

    The first steps are excluded unless there are too few steps. If the script ran to its end, evaluations, checkpoints and
    logging after the last step are included.

    Raises:
        TrialError: No step was observed.
    """
    steps = found["seconds"]
    if not steps:
        raise TrialError(
            "The script made fewer than two optimizer steps, so there is nothing to measure. Is this the training script, "
            "and does it reach its second step?",
            kind="raised",
        )
    counted = steps[WARMUP_STEPS:] if len(steps) > 2 * WARMUP_STEPS else steps
    names = found["phases"]
    total = {name: sum(step[at] for step in counted) for at, name in enumerate(names)}
    if found["ended"]:
        for name in ("validation", "checkpoint", "logging"):
            total[name] += found["tail"][names.index(name)]
    return total, len(counted)


def update_s(found: Found) -> float:
    """Return the seconds per step without validation and checkpoints."""
    seconds, steps = phase_seconds(found)
    return (sum(seconds.values()) - seconds["validation"] - seconds["checkpoint"]) / steps


def ceilings(real: Found, replay: Found | None, silent: Found | None, cut: Found | None = None) -> dict[str, float]:
    """Return the largest gain of each counterfactual, as a ratio.

    Data, logging and padding are measured by separate runs, the others by their share of the time. On a CPU nothing overlaps
    with a phase that the script waits in, so the gain is limited to that phase. For data it is that phase: the other phases
    were timed in another run at another moment, and their drift would hide a gain or invent one. There are two exceptions,
    for which the run alone decides: if the script mostly waits for data, its cores become idle and the following phases run
    slower; and loader workers take cores from all phases. A replay still waits for workers that start with an epoch, so its
    remaining data time counts as saved too.
    """
    seconds, steps = phase_seconds(real)
    whole_s, core_s = sum(seconds.values()) / steps, update_s(real)

    def gain(saved_s: float) -> float:
        return whole_s / max(whole_s - max(saved_s, 0.0), 1e-9)

    gains = {name: gain(seconds[name] / steps) for name in ("validation", "checkpoint")}
    runs = (("input", replay, ("data",)), ("logging", silent, ("logging",)), ("padding", cut, ("forward", "backward")))
    for name, other, phases in runs:
        if other is None or not other["seconds"]:
            if name == "input":
                gains[name] = gain(sum(seconds[phase] for phase in phases) / steps)
            continue
        saved_s, most_s = core_s - update_s(other), sum(seconds[phase] for phase in phases) / steps
        bounded = real["device"] == "cpu"
        if name == "input":
            left, left_steps = phase_seconds(other)
            saved_s += left["data"] / left_steps
            waits = (real["fetch_wait_frac"] or 0.0) > MOSTLY_WAITING
            bounded = bounded and not waits and not real.get("has_workers", False)
            saved_s = most_s if bounded else saved_s
        gains[name] = gain(min(saved_s, most_s) if bounded else saved_s)
    around_s = (seconds["data"] + seconds["validation"] + seconds["checkpoint"]) / steps
    if around_s >= LEAST_LEFT * whole_s:
        gains["compute"] = gain(whole_s - around_s)
    return gains


def wants_silence(real: Found) -> bool:
    """Return whether logging takes enough time for a run without it."""
    seconds, _ = phase_seconds(real)
    return seconds["logging"] >= WORTH_A_RUN * sum(seconds.values())


def wants_cut(real: Found) -> bool:
    """Return whether there is enough padding for a run without it."""
    return bool(real.get("padding_frac", 0.0) >= padding.WORTH_A_RUN)


def wants_trace(real: Found) -> bool:
    """Return whether the steps spend enough time in the passes, or unexplained, to see which operators run."""
    seconds, _ = phase_seconds(real)
    examined = sum(seconds[name] for name in ("forward", "backward", "optimizer", "other"))
    return examined >= WORTH_A_TRACE * sum(seconds.values()) and update_s(real) < MOST_TRACED_S


def logging_writes(real: Found) -> bool | None:
    """Return whether logging spends more time writing than reading values; None if no source line shows it."""
    seconds = {kind: float(sum(place[4] for place in real["places"] if place[0] in kind)) for kind in (READS, WRITES)}
    return seconds[WRITES] > seconds[READS] if any(seconds.values()) else None


def python_lines(lines: Sequence[tuple[str, int, float]], share: float) -> list[dict[str, Any]]:
    """Return the lines that run between operators. `share`: their share of the time, which their samples divide."""
    return [
        {"what": PYTHON, "file": file, "line": line, "times": 0, "share": share * part}
        for file, line, part in lines
        if share * part >= WORTH_A_LINE
    ]


def where(real: Found, always: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return lines of the user's code by time spent, largest first. Shares are of the wall time of all steps.

    Args:
        real: Observations of the unchanged script.
        always: Places that are reported even if they take little time.
    """
    wall = sum(phase_seconds(real)[0].values())
    lines = [
        {"what": what, "file": file, "line": line, "times": times, "share": min(seconds / wall, 1.0)}
        for what, file, line, times, seconds in real["places"]
    ]
    worth = [line for line in lines if line["share"] >= WORTH_A_LINE or line["what"] in always]
    return sorted(worth, key=lambda line: -line["share"])[:LINES]


def diagnose_script(
    real: Found,
    phases: Mapping[str, float],
    gains: Mapping[str, float],
    ran: Sequence[str],
    operators: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Name a script's bottleneck and the source line that causes it.

    Args:
        real: Observations of the unchanged script.
        phases: Share of each phase.
        gains: The ceilings.
        ran: The ceilings that were measured by a separate run.
        operators: What the trace of operators found, if there was one.
    """
    measured = {name: gain for name, gain in gains.items() if name in ran}
    inputs = CAUSES[Bottleneck.INPUT]
    fetching = next((line for line in where(real, inputs) if line["what"] in inputs), None)
    starts = fetching is not None and fetching["what"] == STARTING
    wait_frac = None if starts else real["fetch_wait_frac"]  # waiting for workers to start cannot be hidden by prefetching
    diagnosis = diagnose(phases, measured, wait_frac=wait_frac, logging_writes=logging_writes(real))
    name, share, sentences = diagnosis.name, diagnosis.share, list(diagnosis.sentences)
    places = CAUSES.get(name, ())
    line = next((line for line in where(real, places) if line["what"] in places), None)
    if line is not None and name is Bottleneck.PADDING:
        sentences.insert(
            1, Sentence(f"These batches are made at {line['file']}:{line['line']} ({line['what']}).", ("places",))
        )
    elif line is not None:
        most = "Most of it" if line["share"] > share / 2 else f"{line['share']:.0%} of the time"
        sentences.insert(1, Sentence(f"{most} is spent at {line['file']}:{line['line']} ({line['what']}).", ("places",)))
    if name is Bottleneck.INPUT and starts and fetching is not None:
        times = "once" if fetching["times"] == 1 else f"{fetching['times']} times"
        sentences.insert(2, Sentence(STARTING_WORDS.format(times=times), ("places",)))
    python = python_lines(operators["lines"], phases["other"]) if operators else []
    if operators and name is Bottleneck.COMPUTE and phases["other"] > max(passes_shares(operators, share)) and python:
        sentences = [item for item in sentences if item.measured != ("phases.other",)]
        name, share = Bottleneck.OTHER, phases["other"]
        sentences.insert(0, Sentence(python_words(python[0], share), ("phases.other", "operators")))
    elif python:
        sentences = [
            Sentence(
                ("Also: " if item.words.startswith("Also") else "") + python_words(python[0], phases["other"]),
                (*item.measured, "operators"),
            )
            if item.measured == ("phases.other",)
            else item
            for item in sentences
        ]
    elif name is Bottleneck.OTHER:
        sentences.insert(1, Sentence(OTHER_WORDS, ("phases.other",)))
    if (
        operators
        and name in (Bottleneck.COMPUTE, Bottleneck.OTHER)
        and operators["overhead_frac"] > operators["arithmetic_frac"]
    ):
        compute = phases["forward"] + phases["backward"]
        overhead = Sentence(overhead_words(operators, compute), ("phases.forward", "phases.backward", "operators"))
        sentences.insert(0 if name is Bottleneck.COMPUTE else 1, overhead)
    acting = next((line for line in where(real) if line["what"] == ACTED), None)
    if acting is not None and acting["share"] >= THRESHOLDS[Bottleneck.OTHER]:
        words = ACTING_WORDS.format(**acting)
        sentences.insert(0 if name is Bottleneck.OTHER else len(sentences), Sentence(words, ("places",)))
    growing = steady_growth(
        [(step, used) for step, used in real.get("memory", ())], real.get("memory_limit_bytes", 0), update_s(real)
    )
    if growing is not None:
        name, share, sentences = Bottleneck.MEMORY, growing.frac, [Sentence(growing.words, ("memory",)), *sentences]
    return Diagnosis.of(name, share, sentences)


def python_words(line: Mapping[str, Any], share: float) -> str:
    """Describe other code. `line`: the one with the largest part. `share`: that of all other code."""
    return PYTHON_WORDS.format(share=share, file=line["file"], line=line["line"], part=line["share"])


def passes_shares(operators: Mapping[str, Any], share: float) -> tuple[float, float]:
    """Return the shares of call overhead and of arithmetic. `share`: that of forward and backward together."""
    whole = max(operators["overhead_frac"] + operators["arithmetic_frac"], 1e-9)
    return share * operators["overhead_frac"] / whole, share * operators["arithmetic_frac"] / whole


def overhead_words(operators: Mapping[str, Any], share: float) -> str:
    """Describe passes that mostly call operators. `share`: the passes' share of the time."""
    over, arithmetic = passes_shares(operators, share)
    return OVERHEAD_WORDS.format(over=over, arithmetic=arithmetic, calls=operators["calls"])


def make_profile(
    real: Found,
    replay: Found | None = None,
    silent: Found | None = None,
    cut: Found | None = None,
    trace: Found | None = None,
) -> dict[str, Any]:
    """Return a script's profile in the format of `hasten profile script.py --json`.

    Args:
        real: Observations of the unchanged script.
        replay: Observations with cached batches instead of the loader's.
        silent: Observations with nothing printed, logged or saved.
        cut: Observations with the padding trimmed from the loader's batches.
        trace: Observations of a few steps with `operators`, what the trace of operators found.
    """
    seconds, steps = phase_seconds(real)
    whole = sum(seconds.values())
    operators = None if trace is None else trace.get("operators")
    phases = moved({name: value / whole for name, value in seconds.items()}, operators)
    gains = ceilings(real, replay, silent, cut)
    if operators:
        gains.pop("compute", None)
        left = 1.0 - (phases["forward"] + phases["backward"] + phases["optimizer"])
        if left >= LEAST_LEFT:
            gains["compute"] = 1.0 / left
    others = {"input": replay, "logging": silent, "padding": cut}
    ran = [name for name, other in others.items() if other is not None and other["seconds"]]
    diagnosis = diagnose_script(real, phases, gains, ran, operators)
    lines = where(real, CAUSES[Bottleneck.PADDING] if cut is not None else ())
    if operators:
        python = python_lines(operators["lines"], phases["other"])
        lines = sorted([*lines, *python], key=lambda line: -line["share"])[:LINES]
    return {
        "bottleneck": {"name": str(diagnosis.name), "share": diagnosis.share, "words": diagnosis.words},
        "phases": phases,
        "ceilings": gains,
        "ran": ran,
        "where": lines,
        "step_ms": update_s(real) * 1e3,
        "steps": steps,
        "anchor": real.get("anchor", "optimizer"),
        "own_cost_frac": real["own_cost_frac"],
        "not_finite": real.get("not_finite"),
        "operators": operators and {name: value for name, value in operators.items() if name != "lines"},
        "device": real["device"],
    }


def _check(seen: Seen) -> None:
    if seen.ranks.get(0) is not None and seen.ranks[0]["seconds"]:
        return
    if seen.interrupted:
        raise KeyboardInterrupt
    if seen.elsewhere:
        raise TrialError(ELSEWHERE_WORDS.format(count=seen.elsewhere), kind="raised")
    for why in seen.failures.values():
        raise TrialError(f"The script ran (exit code {seen.code}), but could not be watched: {why}", kind="raised")
    if seen.code != 0:
        raise TrialError(
            f"{failure_words(failure(seen))} That was before its second step; its output is above. "
            "Does it run without Hasten?",
            kind="raised",
        )
    if (backwards := (seen.ranks.get(0) or {}).get("backwards", 0)) > 1:
        raise TrialError(
            f"{backwards} backward passes were observed, but fewer than two steps: no optimizer of torch.optim stepped, and "
            "the parameters did not change. Call hasten.step() after each update.",
            kind="raised",
        )
    raise TrialError(
        "Fewer than two optimizer steps were observed in the script's own process, and its parameters did not change "
        "between backward passes. Is this the training script?",
        kind="raised",
    )
