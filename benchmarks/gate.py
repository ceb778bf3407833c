"""Judge the numerics gate with seeded defects that it must reject and harmless changes that it must accept.

Each case takes the tuner's own path: a resident base process, a challenger in a separate process, evidence and the gate. If
validation quality decides, the paired proof with fresh processes follows. The cases reach the trial processes through the
entry-point group, like third-party optimizations. Speed is not judged. Cases that pass the gate without their own proof also
go through the tuner's final proof, which removes a plan again if its quality became worse. Defects can be caught there too.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from benchmarks.jobs import gate_changes, gate_defects
from benchmarks.record import RESULTS, ROOT, record
from hasten.core.card import Numerics
from hasten.core.errors import TrialError
from hasten.core.optimization import Optimization
from hasten.core.plan import Plan
from hasten.core.target import load_job
from hasten.optimizations import ENTRY_POINT_GROUP, catalogue
from hasten.tune.proof.compare import compare, held_out_verdict
from hasten.tune.search.job_processes import JobProcesses
from hasten.tune.search.screening import FUTILE_TURNS, Screen
from hasten.tune.trials.pair import TURNS, Design
from hasten.tune.trials.trial import Trial, TrialSetting

UPDATES = 30
"""Duration of each screening turn in seconds. The minimum number of turns is used because speed is not judged."""
PROOF_UPDATES = 189
"""Number of updates in nine epochs of the sentences job."""
PROOF_S = 25.0
JOBS = "benchmarks.jobs.gate_jobs"

Kind = Literal["defect", "innocent"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A change with a known effect: the optimization, the job on which it matters, and whether it is a defect."""

    optimization: Optimization
    job: str
    kind: Kind

    @property
    def name(self) -> str:
        """The name in the table."""
        return self.optimization.card.name.removeprefix("gate_")


def cases() -> list[Case]:
    """Return all cases, grouped by job."""
    found: dict[str, Any] = dict(catalogue())
    defects: list[tuple[str, type[Optimization]]] = [
        ("SentencesJob", gate_defects.CheckpointingWithoutRng),
        ("SentencesJob", gate_defects.MeanOfMeans),
        ("SentencesJob", gate_defects.LabelsShuffled),
        ("SentencesJob", gate_defects.AttentionAcrossDocuments),
        ("SentencesJob", gate_defects.DropoutLost),
        ("SentencesJob", gate_defects.StaleGradient),
        ("SentencesJob", gate_defects.ShortToLong),
        ("SentencesJob", gate_defects.LongDropped),
        ("ShapesJob", gate_defects.CacheAfterAugmentation),
        ("ShapesJob", gate_defects.FrozenWorkerSeeds),
        ("ShapesJob", gate_defects.FixedBatchLoss),
        ("ShapesJob", gate_defects.FrozenStatistics),
        ("ShapesJob", gate_defects.FusedWithoutGroups),
        ("ShapesJob", gate_defects.BiasesForgotten),
        ("ShapesJob", gate_defects.ScheduleLost),
        ("DenseJob", gate_defects.ClipBeforeUnscale),
        ("DenseJob", gate_defects.SkippingScaler),
        ("SmallUnitsJob", gate_defects.Float16WithoutScaler),
    ]
    innocents: list[tuple[str, Optimization]] = [
        ("SentencesJob", found["trim_padding"]()),
        ("SentencesJob", found["sequence_packing"]()),
        ("SentencesJob", found["activation_checkpointing"]()),
        ("SentencesJob", found["zero_grad_to_none"]()),
        ("SentencesJob", gate_changes.MicroBatches()),
        ("SentencesJob", gate_changes.DoubleAccumulate()),
        ("SentencesJob", found["length_bucketing"](window_batches=4)),
        ("SentencesJob", gate_changes.OtherShuffle()),
        ("ShapesJob", found["precision"]()),
        ("ShapesJob", found["channels_last"]()),
        ("ShapesJob", found["fused_optimizer"]()),
        ("ShapesJob", gate_changes.ForeachOptimizer()),
        ("ShapesJob", found["sample_cache"]()),
        ("ShapesJob", found["loader_workers"](num_workers=1)),
        ("ShapesJob", found["cpu_threads"](num_threads=2)),
        ("DenseJob", gate_changes.OtherSampleOrder()),
        ("DenseJob", gate_changes.Float16WithScaler()),
        ("SmallUnitsJob", found["precision"]()),
    ]
    both = [Case(optimization=kind(), job=job, kind="defect") for job, kind in defects]
    both += [Case(optimization=item, job=job, kind="innocent") for job, item in innocents]
    return sorted(both, key=lambda case: case.job)


def run_gate(only: Sequence[str] = ()) -> Path:
    """Judge all cases, or those whose name or job is in `only`; other rows of the last result stay."""
    everything = cases()
    chosen = [case for case in everything if not only or case.name in only or case.job in only]
    new = judge_cases(chosen, say=lambda words: print(words, flush=True))
    last = RESULTS / "gate.json"
    old = json.loads(last.read_text(encoding="utf-8"))["rows"] if only and last.exists() else []
    known = {(row["name"], row["job"]): row for row in [*old, *new]}
    rows = [known[case.name, case.job] for case in everything if (case.name, case.job) in known]
    defects = [row for row in rows if row["kind"] == "defect"]
    innocents = [row for row in rows if row["kind"] == "innocent"]
    summary = {
        "defects": len(defects),
        "caught": sum(row["caught"] for row in defects),
        "innocents": len(innocents),
        "refused_innocents": sum(row["caught"] for row in innocents),
    }
    print(", ".join(f"{name} {value}" for name, value in summary.items()), flush=True)
    return record("gate", {**summary, "rows": rows}, "python -m benchmarks gate")


def judge_cases(chosen: Sequence[Case], say: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """Judge cases, those of one job against the same resident base, and return one row per case."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder, registered(chosen, Path(folder) / "packages"):
        for job in dict.fromkeys(case.job for case in chosen):
            setting = TrialSetting(target=f"{JOBS}:{job}", folder=Path(folder) / job)
            uneven = load_job(setting.target).overrides("length")
            others = [_other_seed(setting)]
            screen = Screen(JobProcesses(setting=setting, seed=0), Plan(), uneven=uneven, others=others)
            try:
                for case in chosen:
                    if case.job == job:
                        rows.append(_judge(case, screen))
                        say(_line(rows[-1]))
            finally:
                screen.close()
    return rows


@contextmanager
def registered(chosen: Sequence[Case], folder: Path) -> Iterator[None]:
    """Make the cases discoverable for trial processes: put metadata like that of an installed package on their path."""
    kinds = {type(case.optimization) for case in chosen if type(case.optimization) not in catalogue().values()}
    points = [
        f"{kind.card.name} = {kind.__module__}:{kind.__name__}" for kind in sorted(kinds, key=lambda kind: kind.__name__)
    ]
    package = folder / "hasten_gate-0.dist-info"
    package.mkdir(parents=True)
    package.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: hasten-gate\nVersion: 0\n", encoding="utf-8")
    package.joinpath("entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *points]), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    wanted = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}  # one thread, unless a case needs more
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _other_seed(setting: TrialSetting) -> list[float]:
    """Return losses of the plain job with another seed, as many as the tuner takes."""
    with Trial(setting, Plan(), seed=1) as trial:
        losses: list[float] = trial.call("run", updates=3 * UPDATES // 2)["losses"]
    return losses


def _judge(case: Case, screen: Screen) -> dict[str, Any]:
    started = monotonic()
    caught, by, why = _verdict(case, screen)
    return {
        "name": case.name,
        "job": case.job,
        "kind": case.kind,
        "class": str(case.optimization.card.numerics),
        "caught": caught,
        "by": by,
        "why": why,
        "seconds": round(monotonic() - started, 2),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _verdict(case: Case, screen: Screen) -> tuple[bool, str, str]:
    """Return whether the tuner would reject the case, at which stage, and why."""
    plan = Plan(optimizations=(case.optimization,))
    updates = UPDATES * (2 if "order" in case.optimization.card.claims else 1)
    try:
        found = screen.screen(case.optimization, plan, updates, most_turns=FUTILE_TURNS)
    except TrialError as error:
        return True, "gate" if error.kind == "nan" else "failure", str(error)
    if not found.fired:
        return True, "evidence", "; ".join(f"{check['name']}: {check['seen']}" for check in found.evidence) or "no check"
    if found.gate is None or found.gate.verdict == "failed":
        return True, "gate", found.gate.why if found.gate else "nothing was recorded"
    if found.gate.verdict == "passed" and case.kind == "innocent":
        return False, "", found.gate.why
    return _prove(case, plan, screen)


def _prove(case: Case, plan: Plan, screen: Screen) -> tuple[bool, str, str]:
    """Run the validation proof: changed mathematics must be shown not to be worse; other changes must not be worse."""
    job = load_job(screen.setting.target)
    if job.quality is None:
        return False, "", "the job defines no quality metric"
    screen.freeze()
    design = Design(
        updates=PROOF_UPDATES, uneven=job.overrides("length"), seed=0, quality=job.quality, turns=TURNS,
        deadline=monotonic() + PROOF_S,
    )  # fmt: skip
    try:
        verdict = held_out_verdict(compare(screen.setting, Plan(), plan, design), job.quality)
    except TrialError as error:
        return True, "held-out proof" if error.kind == "nan" else "failure", str(error)
    must_be_shown = case.optimization.card.numerics is Numerics.TRAINING
    caught = verdict.verdict == "worse" or (must_be_shown and verdict.verdict != "not_worse")
    return caught, "held-out proof" if caught else "", verdict.why


def _line(row: dict[str, Any]) -> str:
    right = row["caught"] == (row["kind"] == "defect")
    words = f"caught by {row['by']}" if row["caught"] else "let through"
    mark = "" if right else "WRONG: "
    return f"{mark}{row['kind']} {row['name']} ({row['class']}, {row['job']}): {words}: {row['why']} [{row['seconds']} s]"
