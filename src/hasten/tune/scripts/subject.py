"""A script as the subject of a tuning: the job is what `python train.py` does."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from pathlib import Path

from hasten.core.errors import HastenError
from hasten.core.facts import Facts
from hasten.core.job import Quality
from hasten.core.stats import TRAINING_LOSS
from hasten.optimizations import catalogue
from hasten.optimizations.parts.sample_caching import disk_words, quoted_source
from hasten.report.evidence import Candidate, Patch
from hasten.script.entry.command import check_command
from hasten.script.plan.live import ScriptJob
from hasten.script.plan.reach import why_beyond
from hasten.tune.record import Record
from hasten.tune.request import TuneRequest
from hasten.tune.scripts.processes import BEFORE, ScriptProcesses
from hasten.tune.search.candidate import names_of, put
from hasten.tune.search.screening import Screen
from hasten.tune.subject import Subject
from hasten.tune.trials.trial import Trial

MARGIN_FRAC = 0.01
"""Minimum margin within which training losses count as not worse, as a share of the loss. Wider if seeds differ by more."""
PATCH = "hasten.patch"


def script_subject(request: TuneRequest) -> Subject:
    """Return the script that a request names by its command, as a subject.

    Its quality is the training loss in the final proof: it must not be worse by more than seeds differ.

    Raises:
        HastenError: The script does not exist, or the request is not possible for a script.
    """
    check_command(request.command)
    if request.ranks > 1:
        raise HastenError("Scripts are tuned in one process. Leave out --ranks and tune the script on one device.")
    name, arguments = shlex.quote(request.command[0]), shlex.join(request.command[1:])
    options = f"--budget {request.budget_s:.0f}s --out {request.folder}{request.chosen_flags}"
    lines = f"hasten tune {name} {options}", f"hasten run --plan {request.folder}/hasten.toml {name}"
    script = Path(request.command[0])
    return Subject(
        job=ScriptJob(),
        name=script.name,
        fingerprint=fingerprint(request.command),
        commands=tuple(f"{line} -- {arguments}".removesuffix(" -- ") for line in lines),
        kinds={name: kind for name, kind in catalogue().items() if kind.card.in_scripts},
        is_uneven=lambda facts: facts.validation_s > 0 or facts.checkpoint_s > 0,  # both arms do this at the same steps
        processes=lambda setting, seed, facts: ScriptProcesses(setting=setting, seed=seed, draws=facts.job.load_is_random),
        losses=_counted_losses,
        quality=_training_loss,
        finish=lambda record, facts: _finish(record, facts, script),
        events_apart=False,
        whole_runs=False,
    )


def _counted_losses(trial: Trial, updates: int) -> list[float]:
    """Return the losses after the steps that a screening does not count; fewer if the script ends earlier."""
    trial.call("warm", updates=BEFORE - 1)
    losses: list[float] = trial.call("run", updates=updates, or_fewer=True)["losses"]
    return losses


def _training_loss(screen: Screen) -> Quality:
    """Return the training loss as the quality metric, with the difference between seeds as its margin."""
    curves = [list(screen.base.losses), *map(list, screen.others)]
    ends = [sum(curve[len(curve) // 2 :]) / max(len(curve) - len(curve) // 2, 1) for curve in curves if curve]
    spread = max(ends) - min(ends) if len(ends) > 1 else 0.0
    least = MARGIN_FRAC * max(map(abs, ends), default=1.0)
    return Quality(metric=TRAINING_LOSS, direction="min", margin=max(spread, least, 1e-12))


def _finish(record: Record, facts: Facts, script: Path) -> None:
    """Record the techniques that cannot act on a script, and write the plan as a patch of it where possible."""
    known, need = names_of(record.candidates), ""
    if facts.sample_bytes and facts.job.num_samples:
        size = disk_words(facts.sample_bytes * facts.job.num_samples)
        need = f" (needs {size} of disk for the prepared samples, estimated from those measured)"
    source = quoted_source(facts.job.data_path)
    for name, kind in catalogue().items():
        if name not in known and (why := why_beyond(kind.card, source=source, need=need)):
            put(record.candidates, Candidate(name=name, settings={}, outcome="refused", reason=why))
    plan = record.applied_plan()
    if plan.optimizations and script.suffix == ".py":
        from hasten.script.patch import suggest  # noqa: PLC0415 - importing libcst takes most of a second

        patch = suggest(plan, script)
        if patch.diff:
            (record.out / PATCH).write_bytes(patch.diff.encode("utf-8"))  # keeps the line ends of the files
        folder = os.path.relpath(patch.folder)
        record.note(patch=Patch(written=patch.written, left=patch.left, folder="" if folder == os.curdir else folder))


def fingerprint(command: tuple[str, ...]) -> str:
    """Return a short hash of the script's text and arguments. Evidence with another hash belongs to another script."""
    text = b"" if command[0] == "-m" else Path(command[0]).read_bytes()
    return hashlib.sha256(text + "\0".join(command).encode() + sys.version.encode()).hexdigest()[:16]
