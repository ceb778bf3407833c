"""Format numbers and verdicts for the terminal and the page, and phrase the headline of a tuning."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hasten.core.stats import metric_words
from hasten.report.evidence import Candidate, Comparison, Evidence, Final, Wanted

Tone = Literal["good", "bad", "open"]

IN_GOOD_SHAPE = (
    "No technique that was tried made this job faster without harm. It is already in good shape for this machine."
)
WORTH_HAVING = 1.1
"""Smallest gain that matters: a job is not called in good shape if a measurement leaves open a larger one."""
AROUND = ("validation", "checkpoint")
"""Phases around the updates, which `step_ms` does not contain."""
ENDINGS = {
    "budget": "the budget ran out before everything was tried and proved. Tune again with a larger --budget.",
    "noise": "something else kept using this machine, so too little could be measured. Tune again when it is quiet.",
    "interrupted": "tuning was interrupted before the final proof. Run the same command with --resume to continue.",
    "trial failures": "a trial failed, and the tuning with it. Tune again.",
}
"""Why a tuning ended without a final proof -> the explanation and the next step."""


def ratio_words(ratio: float | None, sign: str = "x") -> str:
    """Format a gain, such as `4.9x` or `0.96x`; a dash if unknown."""
    if ratio is None:
        return "–"
    return f"{ratio:.{2 if ratio < 2 else 1 if ratio < 20 else 0}f}{sign}"


def interval_words(comparison: Comparison | None, sign: str = "x") -> str:
    """Format an interval, such as `4.5x to 5.4x`; empty if unknown."""
    if comparison is None or comparison.low is None or comparison.high is None:
        return ""
    return f"{ratio_words(comparison.low, sign)} to {ratio_words(comparison.high, sign)}"


def is_to_target(comparison: Comparison | None) -> bool:
    """Return whether a comparison is by time to target, over whole runs."""
    return comparison is not None and comparison.kind == "time_to_target"


def kind_words(comparison: Comparison | None) -> str:
    """Return how a comparison was run, such as `whole runs, time to target`."""
    if comparison is None:
        return ""
    return "whole runs, time to target" if is_to_target(comparison) else comparison.kind or ""


def pairs_words(comparison: Comparison | None) -> str:
    """Format the number of pairs, such as `5 pairs`; empty if unknown."""
    return "" if comparison is None else f"{comparison.pairs} pair{'' if comparison.pairs == 1 else 's'}"


def percent(frac: float | None) -> str:
    """Format a share, such as `31 %`; small shares get a decimal."""
    if frac is None:
        return "–"
    share = 100 * frac
    if share == 0 or abs(share) >= 9.95:
        return f"{share:.0f} %"
    return f"{share:.1f} %" if abs(share) >= 0.05 else f"{share:.2g} %"


def ms_words(ms: float | None) -> str:
    """Format a time per update, such as `812 ms` or `12.3 s`."""
    if ms is None:
        return "–"
    if ms >= 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.2g} ms" if ms < 1 else f"{ms:.1f} ms" if ms < 20 else f"{ms:.0f} ms"


def wall_ms(shares: Mapping[str, float], update_ms: float | None) -> float | None:
    """Return the wall time per update in ms, including its part of validation and checkpoints.

    Args:
        shares: Share of each phase in this wall time.
        update_ms: Time of the update alone, as in `step_ms`.
    """
    around = sum(shares.get(name, 0.0) for name in AROUND)
    return None if update_ms is None else update_ms / max(1.0 - around, 1e-6)


def comparable_phases(evidence: Evidence) -> tuple[Mapping[str, float], Mapping[str, float], tuple[str, ...]]:
    """Return the shares of the phases before and after, and the phases that were not measured again under the plan.

    Those phases are left out of the shares before: otherwise their time would look like a gain.
    """
    before, after = evidence.phases, evidence.phases_after or {}
    missing = tuple(name for name in AROUND if after and name not in after and before.get(name))
    rest = 1.0 - sum(before[name] for name in missing)
    if missing and rest > 0:
        before = {name: share / rest for name, share in before.items() if name not in missing}
    return before, after, missing


def seconds_words(seconds: float | None) -> str:
    """Format a duration, such as `42 s`, `18 min` or `2 h 05 min`."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def bytes_words(size: float | None) -> str:
    """Format a size, such as `1.4 GiB`."""
    if size is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def settings_words(candidate: Candidate) -> str:
    """Format the settings of a candidate on one line, such as `dtype=bfloat16`."""
    return ", ".join(f"{key}={value}" for key, value in candidate.settings.items())


def value_words(key: str, value: Any) -> str:
    """Format the value of a reading, in the unit that its key names."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and math.isfinite(value):
        for ending, words in (("_bytes", bytes_words), ("_frac", percent), ("_ms", ms_words), ("seconds", seconds_words)):
            if key.endswith(ending):
                return words(value)
        return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {item}" for name, item in value.items()) or "none"
    return "not known" if value is None else str(value)


def key_words(key: str) -> str:
    """Format a key as a label without its unit: `num_params` becomes `parameters`."""
    words = key.removeprefix("num_").removesuffix("_bytes").removesuffix("_frac").removesuffix("_ms").replace("_", " ")
    return {"params": "parameters"}.get(words, words)


def outcome_words(candidate: Candidate) -> str:
    """Return the outcome for a user. A refused candidate was `not applicable`, `rejected`, `slower` or `no gain`."""
    return outcome_in_words(
        candidate.outcome,
        tried=candidate.tried,
        verdict=candidate.comparison.verdict if candidate.comparison else None,
        numerics=candidate.numerics.verdict if candidate.numerics else None,
    )


def outcome_in_words(outcome: str, *, tried: bool, verdict: str | None, numerics: str | None) -> str:
    """Return `outcome_words` from its parts: verdicts of the comparison and of the numerics gate, None if there is none."""
    if outcome == "undecided" and not tried:
        return "not tried"
    if outcome != "refused":
        return {"pruned": "removed"}.get(outcome, outcome)
    if not tried:
        return "not applicable"
    if numerics == "failed" or verdict in (None, "faster"):
        return "rejected"
    return "slower" if verdict == "slower" else "no gain"


def outcome_line(candidate: Candidate) -> str:
    """Return the outcome, the name and the reason of a candidate on one line."""
    outcome = outcome_words(candidate)
    return f"{outcome}: {candidate.name}: {candidate.reason.removeprefix(f'{outcome}: ')}"


def nothing_learnt_words(rungs: Sequence[Candidate]) -> str:
    """Say why a tuning could try no technique; "" if it tried one that did not fail."""
    if any(item.tried and item.outcome != "failed" for item in rungs):
        return ""
    if any(item.outcome == "failed" for item in rungs):
        return "every technique that was tried failed, so nothing was learned. The summary has the reasons."
    if any(item.reason.startswith("not tried") for item in rungs):
        return "no technique could be tried: the budget is too short for a single one. Tune again with a larger --budget."
    return "no technique could be tried, because none applies here. --all lists the reasons."


def next_command(evidence: Evidence) -> str:
    """Return the command to run after a tuning: train under the plan, or continue the tuning; empty if there is none."""
    by_verb = {" ".join(command.split()[:2]): command for command in evidence.commands or ()}
    if evidence.ended == "interrupted":
        command, separator, arguments = by_verb.get("hasten tune", "").partition(" -- ")
        return f"{command} --resume{separator}{arguments}" if command else ""
    return by_verb.get("hasten run", "") if evidence.applied and headline(evidence).tone == "good" else ""


def command_words(command: str, width: int) -> str:
    """Return a shell command on lines of at most `width` characters, joined by backslashes so that it can be copied."""
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


@dataclass(frozen=True)
class Headline:
    """The answer in one line, with its parts for a page that sets them large.

    Attributes:
        line: The whole answer.
        big: The ratio (`4.9x`) or a few words.
        detail: Everything else: interval and quality, or the next step.
        tone: `good` only for a proved gain that does no harm.
    """

    line: str
    big: str
    detail: str
    tone: Tone


def quality_words(final: Final | None) -> tuple[str, Tone]:
    """Return the verdict on quality, such as `held-out loss not worse`, and its tone; empty if there is none."""
    quality = final.quality if final else None
    if quality is None:
        return "", "open"
    verdict = quality.verdict.replace("_", " ")
    tone: Tone = "good" if verdict in ("not worse", "better", "same", "passed", "equal") else "open"
    if verdict in ("worse", "failed"):
        tone = "bad"
    return f"{metric_words(quality.metric)} {verdict}", tone


def _all_gates_passed(evidence: Evidence) -> bool:
    """Return whether every applied candidate passed its numerics gate."""
    return bool(evidence.applied) and all(item.numerics and item.numerics.verdict == "passed" for item in evidence.applied)


def headline(evidence: Evidence) -> Headline:
    """Return the result of a tuning in one line."""
    final = evidence.final
    if final is None or final.ratio is None:
        return _without_final(evidence)
    speed = ratio_words(final.ratio)
    proof = ", ".join(part for part in (interval_words(final), pairs_words(final)) if part)
    proof = f" ({proof})" if proof else ""
    words, tone = quality_words(final)
    if final.time_to_target is not None and final.time_to_target.verdict == "faster":
        return _to_target_headline(final.time_to_target, f"per update {speed}{proof}", words, tone)
    if evidence.objective is not None and evidence.objective.goal == "memory":
        return _memory_headline(evidence, f"{speed} the speed{proof}", words, tone)
    if evidence.epoch_gain is not None and final.verdict != "slower":
        return _epoch_headline(evidence, evidence.epoch_gain, f"{speed}{proof}", words, tone)
    if final.verdict == "faster":
        if tone == "open" and words and _all_gates_passed(evidence):
            detail = f"proved{proof}; {words} with so few seeds, though every candidate passed its numerics gate"
            return Headline(f"{speed} faster, {detail}", f"{speed} faster", detail, "open")
        if words and tone != "good":
            detail = f"but {words}{proof}: do not adopt this plan as it is"
            return Headline(f"{speed} faster, {detail}.", f"{speed} faster", detail, tone)
        cost = _cost_words(evidence.objective)
        detail = "; ".join(part for part in (f"proved{proof}", words, cost) if part)
        return Headline(f"{speed} faster, {detail}", f"{speed} faster", detail, "good")
    if final.verdict == "slower":
        detail = f"the plan as a whole is slower: {speed}{proof}. Keep the job as it is."
        return Headline(f"No gain: {detail}", "No gain", detail, "bad")
    if not evidence.applied and final.verdict == "same" and any(item.tried for item in evidence.rungs):
        return _in_good_shape()
    meaning = "no difference beyond the noise" if final.verdict == "same" else "the runs differ too much to decide"
    detail = f"{meaning}: {speed}{proof}. Keep the job as it is, or tune again with a larger budget."
    return Headline(f"Not proved: {detail}", "Not proved", detail, "open")


def _to_target_headline(reached: Comparison, speed: str, words: str, tone: Tone) -> Headline:
    """Return the headline of a plan that is proved by whole runs."""
    big = f"{ratio_words(reached.ratio)} sooner at the target"
    runs = ", ".join(part for part in (interval_words(reached), pairs_words(reached)) if part)
    detail = "; ".join(part for part in (f"proved over whole runs ({runs})", words, speed) if part)
    return Headline(f"{big}, {detail}", big, detail, tone if words else "open")


def _epoch_headline(evidence: Evidence, gain: tuple[float, float, float], speed: str, words: str, tone: Tone) -> Headline:
    """Return the headline of a plan that acts only on work around the updates, such as validation."""
    ratio, low, high = gain
    events = " and ".join(sorted({str(item.event) for item in evidence.applied}))
    decided = evidence.final is not None and evidence.final.verdict != "undecided"
    updates = f"updates run at {speed}" if decided else f"whether updates stay as fast is not decided: {speed}"
    proof = f"{'proved' if decided else 'measured'} by the time of an epoch with its {events}"
    big = f"{ratio_words(ratio)} faster per epoch"
    detail = "; ".join(part for part in (f"{proof} ({ratio_words(low)} to {ratio_words(high)})", updates, words) if part)
    return Headline(f"{big}, {detail}", big, detail, (tone if words else "good") if decided else "open")


def _memory_headline(evidence: Evidence, speed: str, words: str, tone: Tone) -> Headline:
    """Return the headline of a tuning with the objective `memory`."""
    memory = evidence.memory
    if memory is None or not memory.baseline_peak_bytes or not memory.tuned_peak_bytes or not evidence.applied:
        detail = f"no plan lowers the peak memory enough within the slowdown that is allowed; the last one ran at {speed}"
        return Headline(f"Not proved: {detail}", "Not proved", detail, "open")
    before, after = memory.baseline_peak_bytes, memory.tuned_peak_bytes
    big = f"{percent(1 - after / before)} less memory"
    detail = f"peak {bytes_words(before)} before, {bytes_words(after)} after, at {speed}" + (f"; {words}" if words else "")
    return Headline(f"{big}: {detail}", big, detail, tone if words else "good")


def _cost_words(wanted: Wanted | None) -> str:
    if wanted is None or wanted.baseline_cost is None or wanted.tuned_cost is None:
        return ""
    return f"the whole run costs {wanted.tuned_cost:.4g} instead of {wanted.baseline_cost:.4g}"


def _without_final(evidence: Evidence) -> Headline:
    ended = evidence.ended or ("interrupted" if evidence.finished is False else "done")
    num_applied = len(evidence.applied)
    if ended == "done" and not num_applied and evidence.rungs:
        tried = [candidate for candidate in evidence.rungs if candidate.tried]
        if not tried:
            detail = "no technique could be tried on this job, so this says nothing about it. Read the reasons below."
            return Headline(f"Nothing tried: {detail}", "Nothing tried", detail, "bad")
        failed = sum(candidate.outcome == "failed" for candidate in tried)
        if failed == len(tried):
            detail = "every candidate failed, so this says nothing about the job. Read the reasons below."
            return Headline(f"Nothing proved: {detail}", "Nothing proved", detail, "bad")
        unlike = sum(candidate.numerics is not None and candidate.numerics.verdict == "failed" for candidate in tried)
        if unlike and evidence.noise is not None and evidence.noise.repeats is False:
            detail = (
                f"two plain runs with the same seed gave different losses, so what looks like harm in {unlike} of "
                f"{len(tried)} candidates may be chance. Seed everything that the training draws at random, and tune again."
            )
            return Headline(f"Nothing proved: {detail}", "Nothing proved", detail, "open")
        left_open = sum(_hides_a_gain(candidate) for candidate in tried)
        if failed or left_open:
            counts = ((failed, "failed"), (left_open, "left undecided"))
            words = " and ".join(f"{count} {what}" for count, what in counts if count)
            detail = f"of {len(tried)} candidates {words}; the others were not faster without harm. Read the reasons below."
            return Headline(f"Nothing proved: {detail}", "Nothing proved", detail, "open")
        return _in_good_shape()
    why = ENDINGS.get(ended, "there is no final comparison. Run the same command again.")
    if evidence.failure:
        why = f"a trial failed, and the tuning with it: {evidence.failure}"
    if num_applied:
        why += f" So far {num_applied} candidate{'s' if num_applied > 1 else ''} looked good, but this is not proved yet."
    elif best := max((item for item in evidence.rungs if _looked_faster(item)), key=_ratio, default=None):
        why += f" Looked faster, but is not proved: {best.name}, {ratio_words(_ratio(best))} in turns."
    return Headline(f"Nothing proved yet: {why}", "Nothing proved yet", why, "open")


def _looked_faster(candidate: Candidate) -> bool:
    return candidate.outcome == "undecided" and candidate.comparison is not None and candidate.comparison.verdict == "faster"


def _ratio(candidate: Candidate) -> float:
    return (candidate.comparison and candidate.comparison.ratio) or 1.0


def _hides_a_gain(candidate: Candidate) -> bool:
    """Return whether a candidate was left undecided and its interval allows a gain that matters."""
    high = candidate.comparison.high if candidate.comparison else None
    return candidate.outcome == "undecided" and (high is None or high > WORTH_HAVING)


def _in_good_shape() -> Headline:
    first, _, second = IN_GOOD_SHAPE.partition(". ")
    return Headline(IN_GOOD_SHAPE, "Already in good shape", f"{first}. {second}", "good")
