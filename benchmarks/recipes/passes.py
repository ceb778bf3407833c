"""Measure the time of a validation pass in both forms of a recipe, and relative to training on the same number of images.

Fresh processes run in pairs: one of each form, alive together and suspended in turns. The unit is a pair. Both use the
weights of a trained network: an untrained one finds no text, so there would be nothing to post-process and compare.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from hasten.core.plan import Plan
from hasten.core.stats import paired_interval
from hasten.core.target import load_job
from hasten.tune.trials.trial import Trial, TrialSetting

PAIRS = 10
TURNS = 3
UPDATES = 4
"""Per turn."""
CONFIDENCE = 0.95
NAIVE, REAL = "naive", "real"


def run_passes(target: str, plan: Plan, weights: Path, pairs: int = PAIRS) -> dict[str, Any]:
    """Run the measurement.

    Args:
        target: The job in its naive form.
        plan: The tuned plan, which names the optimized form.
        weights: Weights of the trained network.
        pairs: Number of pairs of processes.

    Returns:
        `valid_gain` (naive over optimized) and, for each form, `valid_over_train`, with intervals and raw seconds.

    Raises:
        TrialError: A process failed.
    """
    rows = []
    num_images = _held_out(target)
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:
        setting = TrialSetting(target=target, folder=Path(folder), hang_s=1200.0)
        for pair in range(pairs):
            rows.append(_pair(setting, {NAIVE: Plan(), REAL: plan}, weights, pair=pair, num_images=num_images))
            words = ", ".join(
                f"{form}: training {rows[-1][form]['train_s']:.2f} s, validation {rows[-1][form]['valid_s']:.2f} s"
                for form in (NAIVE, REAL)
            )
            print(f"pair {pair + 1}: {words}", flush=True)
    seconds = {key: {form: [row[form][key] for row in rows] for form in (NAIVE, REAL)} for key in ("train_s", "valid_s")}
    valid, train = seconds["valid_s"], seconds["train_s"]
    return {
        "plan": plan.to_dict(),
        "valid_gain": _interval(valid[NAIVE], valid[REAL]),
        "valid_over_train": {form: _interval(valid[form], train[form]) for form in (NAIVE, REAL)},
        "rows": rows,
    }


def _interval(over: list[float], under: list[float]) -> dict[str, float]:
    found = paired_interval(over, under, CONFIDENCE)
    return {"ratio": found.ratio, "low": found.low, "high": found.high}


def _pair(setting: TrialSetting, plans: dict[str, Plan], weights: Path, *, pair: int, num_images: int) -> dict[str, Any]:
    """Run one process of each form; return median seconds of a validation pass, and of training on as many images."""
    order = random.Random(f"passes-{pair}")
    forms = list(plans)
    with ExitStack() as stack:
        trials: dict[str, Trial] = {}
        for form in forms:
            trials[form] = stack.enter_context(Trial(setting, plans[form], seed=pair))
            trials[form].call("warm", updates=3)
            _load(trials[form], weights)
            _validate(trials[form], setting)
            trials[form].freeze()
        turns: dict[str, list[dict[str, Any]]] = {form: [] for form in forms}
        for _ in range(TURNS):
            order.shuffle(forms)
            for form in forms:
                with _awake(trials[form]) as trial:
                    _load(trial, weights)
                    turns[form].append(_turn(trial, setting))
    return {form: _summary(turns[form], num_images) for form in plans}


def _held_out(target: str) -> int:
    """Return the number of images in a validation pass."""
    data: Any = load_job(target).valid_data()
    return len(data)


@contextmanager
def _awake(trial: Trial) -> Iterator[Trial]:
    trial.thaw()
    yield trial
    trial.freeze()


def _turn(trial: Trial, setting: TrialSetting) -> dict[str, Any]:
    validated = _validate(trial, setting)
    trained = trial.call("run", updates=UPDATES)
    return {
        "train_s_per_picture": sum(trained["times"]) / sum(trained["items"]),
        "valid_s": validated["seconds"],
        "metrics": validated["metrics"],
        "spoilt": trained["spoilt"] or validated["spoilt"],
    }


def _validate(trial: Trial, setting: TrialSetting) -> dict[str, Any]:
    return trial.call(
        "event", event="validation", updates=0, repeats=1, max_batches=None, folder=str(setting.folder.resolve())
    )


def _load(trial: Trial, weights: Path) -> None:
    if not trial.call("put_weights", path=str(weights.resolve()))["loaded"]:
        raise SystemExit(f"{weights} does not belong to this network")


def _summary(turns: list[dict[str, Any]], num_images: int) -> dict[str, Any]:
    return {
        "turns": turns,
        "valid_s": median(turn["valid_s"] for turn in turns),
        "train_s": num_images * median(turn["train_s_per_picture"] for turn in turns),
    }
