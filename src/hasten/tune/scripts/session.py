"""Tune a script: the session of a job, where the job is whatever `python train.py` does."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from hasten.core.errors import HastenError, TargetError
from hasten.core.facts import Facts
from hasten.core.job import Job, Quality
from hasten.core.optimization import Optimization
from hasten.core.stats import NonInferiority
from hasten.optimizations import catalogue
from hasten.optimizations.parts.sample_caching import disk_words, quoted_source
from hasten.script.plan.live import ScriptJob
from hasten.script.plan.reach import why_beyond
from hasten.tune.proof.compare import Comparison
from hasten.tune.proof.whole_runs import TargetDesign
from hasten.tune.scripts.screen import BEFORE, ScriptScreen, other_curve
from hasten.tune.search.candidate import Candidate
from hasten.tune.session import EMPTY, Session, TuneRequest

MARGIN_FRAC = 0.01
"""The least by which a training loss may differ and still count as not worse, as a share of it; more where seeds do more."""
PATCH = "hasten.patch"


class ScriptSession(Session):
    """One tuning of a script.

    Args:
        request: What to tune: `command` is the script and its arguments.
        say: Told in words what is going on.

    Raises:
        HastenError: There is no such script, or what was asked for cannot be had of a script.
    """

    events_apart: ClassVar[bool] = False

    def __init__(self, request: TuneRequest, say: Callable[[str], None] = lambda _: None) -> None:
        check_command(request.command)
        if request.ranks > 1:
            raise HastenError("Scripts are tuned in one process: leave --ranks out, and tune the script on one device.")
        super().__init__(request, say)
        self._need, self._events = "", False
        evidence, out = self.record.evidence, shlex.quote(str(request.out))
        words = shlex.join(request.command[1:])
        name = shlex.quote(request.command[0])
        evidence["job"] |= {"name": Path(request.command[0]).name, "fingerprint": fingerprint(request.command)}
        evidence["commands"] = [
            f"hasten tune {name} --budget {request.budget_s:.0f}s --out {out} -- {words}".removesuffix(" -- "),
            f"hasten run --plan {out}/hasten.toml {name} -- {words}".removesuffix(" -- "),
        ]

    def run(self) -> dict[str, Any]:
        """Tune, and write the plan as a patch of the script too, as far as it can be written."""
        evidence = super().run()
        self._note_beyond()
        self._write_patch()
        self.record.finish(evidence["ended"])
        return evidence

    def kinds(self) -> Mapping[str, type[Optimization]]:
        """What has a seam in a script."""
        return {name: kind for name, kind in catalogue().items() if kind.card.in_scripts}

    def _load_job(self) -> Job:
        return ScriptJob()

    def _profile(self) -> Facts:
        facts = super()._profile()
        self.planned_updates = None  # nobody knows it
        self._events = facts.validation_s > 0 or facts.checkpoint_s > 0
        if facts.sample_bytes and facts.job.num_samples:
            needed = disk_words(facts.sample_bytes * facts.job.num_samples)
            self._need = f" ({needed} of disk as they are prepared now, by the samples measured)"
        return facts

    @property
    def uneven(self) -> bool:
        """Some steps validate or save: both arms do at the same steps, so the total time counts and no typical one."""
        return self._events

    def _make_screen(self, others: list[list[float]], slices: int) -> ScriptScreen:
        screen = ScriptScreen(
            self.setting, EMPTY, uneven=self.uneven, others=others, seed=self.seed, say=self.say, slices=slices
        )
        screen.draws = bool(self.record.evidence["job"].get("load_is_random"))
        return screen

    def _other_seed(self, updates: int) -> list[float]:
        with self._trial_of_another_seed() as trial:
            return other_curve(trial, max(3 * updates // 2, 8))

    def _target_design(self) -> TargetDesign | None:
        return None

    def _final_updates(self, seconds: float, tuned_s: float) -> int:
        """Steps of each process of the proof: no more than the script has."""
        updates = self.costs.final_updates(seconds, tuned_s)
        most = self.screen.most_steps if isinstance(self.screen, ScriptScreen) else None
        return updates if most is None else max(min(updates, most - BEFORE), 4)

    def _final(
        self, plan: Any, tuned_s: float, share: float = 1.0, *, held_out: bool = True, whole: int | None = None
    ) -> tuple[Comparison, NonInferiority | None]:
        """The proof, with the training loss for quality: not worse by more than seeds differ."""
        self.job.quality = self._quality()  # type: ignore[misc]  # of this script; a class variable of jobs that users write
        return super()._final(plan, tuned_s, share, held_out=held_out, whole=whole)

    def _quality(self) -> Quality:
        screen = self.screen
        curves = [screen.base.losses, *screen.others] if screen is not None else []
        ends = [sum(curve[len(curve) // 2 :]) / max(len(curve) - len(curve) // 2, 1) for curve in curves if curve]
        spread = max(ends) - min(ends) if len(ends) > 1 else 0.0
        least = MARGIN_FRAC * max(map(abs, ends), default=1.0)
        return Quality(metric="loss", direction="min", margin=max(spread, least, 1e-12))

    def _note_beyond(self) -> None:
        """Rungs for all that has no seam in a script, with what it would take."""
        known = {rung.name for rung in self.record.rungs}
        source = quoted_source(str(self.record.evidence["job"].get("data_path") or ""))
        for name, kind in catalogue().items():
            if name not in known and (why := why_beyond(kind.card, source=source, need=self._need)):
                self.record.rungs.append(Candidate(name=name, settings={}, outcome="refused", reason=why))

    def _write_patch(self) -> None:
        plan, script = self.record.applied_plan(), Path(self.request.command[0])
        if not plan.optimizations or script.suffix != ".py":
            return
        from hasten.script.patch import suggest  # noqa: PLC0415 - libcst takes most of a second to import

        found = suggest(plan, script)
        if found.diff:
            (self.request.out / PATCH).write_bytes(found.diff.encode("utf-8"))  # line ends are the files' own
        self.record.evidence["patch"] = {"written": found.written, "left": found.left}


def check_command(command: tuple[str, ...]) -> None:
    """Refuse a command that names no script.

    Raises:
        TargetError: It is empty, or there is no such file.
    """
    if not command:
        raise TargetError("No script was named: hasten tune train.py -- its arguments.")
    if command[0] != "-m" and not Path(command[0]).is_file():
        raise TargetError(f"There is no script {command[0]}. Name an existing file, or a module after -m.")


def fingerprint(command: tuple[str, ...]) -> str:
    """A short hash of the script's text and its arguments; another script makes older evidence worthless."""
    text = b"" if command[0] == "-m" else Path(command[0]).read_bytes()
    return hashlib.sha256(text + "\0".join(command).encode() + sys.version.encode()).hexdigest()[:16]
