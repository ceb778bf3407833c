"""How long a validation pass takes, in both forms of a recipe, and beside a training pass over as many pictures.

Fresh processes in pairs: in each pair one of either form, alive together and frozen in turns. The unit is a pair.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from upshift.core.plan import Plan
from upshift.core.stats import paired_interval
from upshift.tune.trials.trial import Trial, TrialSetting

PAIRS = 5
TURNS = 3
UPDATES = 4
"""Of a turn."""
CONFIDENCE = 0.95
NAIVE, REAL = "naive", "real"


def run_passes(target: str, plan: Plan, pairs: int = PAIRS, max_batches: int | None = None) -> dict[str, Any]:
    """Measure.

    Args:
        target: The job in its naive form.
        plan: What tuning found; it names the real form.
        pairs: Pairs of processes.
        max_batches: Held-out batches of a pass; None takes all.

    Returns:
        `valid_gain` (naive over real) and, for each form, `valid_over_train`, with intervals and the raw seconds.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="upshift-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder), hang_s=1200.0)
        for pair in range(pairs):
            rows.append(_pair(setting, {NAIVE: Plan(), REAL: plan}, pair, max_batches))
            words = ", ".join(
                f"{form}: training {rows[-1][form]['train_s']:.2f} s, validation {rows[-1][form]['valid_s']:.2f} s"
                for form in (NAIVE, REAL)
            )
            print(f"pair {pair + 1}: {words}", flush=True)
    gain = paired_interval([row[NAIVE]["valid_s"] for row in rows], [row[REAL]["valid_s"] for row in rows], CONFIDENCE)
    over = {
        form: paired_interval([row[form]["valid_s"] for row in rows], [row[form]["train_s"] for row in rows], CONFIDENCE)
        for form in (NAIVE, REAL)
    }
    return {
        "plan": plan.to_dict(),
        "valid_gain": {"ratio": gain.ratio, "low": gain.low, "high": gain.high},
        "valid_over_train": {
            form: {"ratio": found.ratio, "low": found.low, "high": found.high} for form, found in over.items()
        },
        "rows": rows,
    }


def _pair(setting: TrialSetting, plans: dict[str, Plan], pair: int, max_batches: int | None) -> dict[str, Any]:
    """One process of each form: median seconds of a pass over the held-out pictures, and of training on as many."""
    order = random.Random(f"passes-{pair}")
    forms = list(plans)
    with ExitStack() as stack:
        trials: dict[str, Trial] = {}
        for form in forms:
            trials[form] = stack.enter_context(Trial(setting, plans[form], seed=pair))
            trials[form].call("warm", updates=3)
            _validate(trials[form], setting, max_batches)
            trials[form].freeze()
        turns: dict[str, list[dict[str, Any]]] = {form: [] for form in forms}
        for _ in range(TURNS):
            order.shuffle(forms)
            for form in forms:
                with _awake(trials[form]) as trial:
                    turns[form].append(_turn(trial, setting, max_batches))
    return {form: _summary(turns[form]) for form in plans}


@contextmanager
def _awake(trial: Trial) -> Iterator[Trial]:
    trial.thaw()
    yield trial
    trial.freeze()


def _turn(trial: Trial, setting: TrialSetting, max_batches: int | None) -> dict[str, Any]:
    trained = trial.call("run", updates=UPDATES)
    validated = _validate(trial, setting, max_batches)
    return {
        "train_s_per_picture": sum(trained["times"]) / sum(trained["items"]),
        "valid_s": validated["seconds"],
        "metrics": validated["metrics"],
        "spoilt": trained["spoilt"] or validated["spoilt"],
    }


def _validate(trial: Trial, setting: TrialSetting, max_batches: int | None) -> dict[str, Any]:
    return trial.call(
        "event", event="validation", updates=0, repeats=1, max_batches=max_batches, folder=str(setting.folder.resolve())
    )


def _summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    pictures = turns[0]["metrics"].get("pictures")
    return {
        "turns": turns,
        "valid_s": median(turn["valid_s"] for turn in turns),
        "train_s": median(turn["train_s_per_picture"] for turn in turns) * float(pictures or 1),
    }
