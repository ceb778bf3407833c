"""The commands that a trial inside a script accepts. Each yields when the script should do its next step."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
import torch

from hasten.core.card import StepTrace
from hasten.core.errors import HastenError, LossError
from hasten.core.late_compiler import uncompiled
from hasten.core.provenance import process_environment
from hasten.core.stats import TRAINING_LOSS
from hasten.profile.probes import peak_memory_bytes, reset_peak_memory
from hasten.script.plan.host import Host
from hasten.train.trace import Lens
from hasten.tune.scripts.profiling import ScriptEnded, Steps, profile_script_steps
from hasten.tune.trials.gradients import StepSampler
from hasten.tune.trials.machine_load import Meter, begin_on

TRACED_STEPS = 2
"""Number of steps that `trace` observes: one for the counters, one operator by operator."""
CUT_STEPS = 8
"""Number of steps in which to wait for a batch with padding to cut."""


class Commands:
    """Carries out commands. Each public method is a command.

    Args:
        host: The script's live job, and everything that acts on it.
        progress: Called with a message about the current measurement.
    """

    def __init__(self, host: Host, progress: Callable[[str], None]) -> None:
        self.host, self._progress = host, progress
        self._losses: list[torch.Tensor] = []
        self._counted: list[float] = []
        host.on_loss = self._note_loss

    def load(self) -> Steps:
        """Wait for the script's first step. The plan is applied before it."""
        started = perf_counter()
        yield
        host = self.host
        if not host.opened:  # the first step was of an optimizer whose model had not been called yet
            yield
        missing = {name: host.failures.get(name, "it found nothing to act on in the script") for name in host.plan.names}
        missing = {name: why for name, why in missing.items() if name not in host.applied}
        if missing:
            reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise HastenError(f"not applied to the script: {reasons}")
        return {"seconds": perf_counter() - started, "batch_size": host.live.job.batch_size, "job": "script"}

    def describe(self) -> Steps:
        """Return the environment that the script runs in."""
        yield from ()
        return process_environment()

    def sample(self, *, steps: int, path: str) -> Steps:
        """Sample what the next steps do to the parameters. Write the gradients to a .npy file, one row per step."""
        host, sampler = self.host, StepSampler(self.host.live)
        before, host.on_before = host.on_before, sampler.before
        try:
            for _ in range(steps):
                yield
                sampler.after()
        finally:
            host.on_before = before
        np.save(path, sampler.rows, allow_pickle=False)
        self._losses.clear()
        return {"updates": sampler.updates()}

    def warm(self, *, updates: int) -> Steps:
        """Do steps that are not counted."""
        started = perf_counter()
        for _ in range(updates):
            yield
        self._wait()
        self._losses.clear()
        return {"seconds": perf_counter() - started, "updates": updates}

    def rewind(self) -> Steps:
        """Start counting here. A script cannot go back to its start."""
        self._counted.clear()
        self._losses.clear()
        yield from ()
        return {}

    def prime(self, *, updates: int) -> Steps:
        """Fill caches with the samples of the coming steps, as in a later epoch, as far as their order is known."""
        started = perf_counter()
        filled = self.host.prime(updates * max(self._backwards_per_step(), 1))
        yield from ()
        return {"seconds": perf_counter() - started if filled else 0.0}

    def run(self, *, updates: int, core: int | None = None, or_fewer: bool = False) -> Steps:
        """Count steps: return the time and loss of each, and the machine load meanwhile.

        Args:
            updates: Number of steps.
            core: The core to start on; None keeps the present one.
            or_fewer: Accept fewer steps if the script ends earlier.
        """
        if core is not None:
            begin_on(core)
        times: list[float] = []
        taken: list[torch.Tensor] = []
        self._losses.clear()
        self._wait()
        meter, last = Meter(), perf_counter()
        for _ in range(updates):
            try:
                yield
            except ScriptEnded:
                if not (or_fewer and times):
                    raise
                break
            now = perf_counter()
            times.append(now - last)
            last = now
            taken.append(self._step_loss())
        self._wait()
        times[-1] += perf_counter() - last
        account = meter.read()
        losses = [float(loss) for loss in taken]
        self._counted += losses
        for number, loss in enumerate(losses):
            if not math.isfinite(loss):
                step = self.host.steps - len(losses) + number + 1
                advice = "Lower the learning rate, clip gradients, or check the data of that step."
                raise LossError(f"the loss is {loss} at step {step} of the script. {advice}", update=number, value=loss)
        return {
            "times": times,
            "items": [1] * len(times),
            "losses": losses,
            "skipped": 0,
            **account.to_dict(),
        }

    def trace(self) -> Steps:
        """Observe one step operator by operator, and let each optimization prove that it took effect.

        Caches are filled with the samples of the traced steps first, because in their first epoch they would be empty.
        """
        live = self.host.live
        self.host.prime(TRACED_STEPS * max(self._backwards_per_step(), 1))
        live.counters.clear()
        yield  # counters: an ordinary step
        alive = len(multiprocessing.active_children())
        lens = Lens()
        with uncompiled(), lens:
            yield
        self.host.rehearse()
        gradients = [p.grad for group in live.optimizer.param_groups for p in group["params"]]
        live.counters.update(workers_alive=alive, gradients_held=self._held_after_zeroing(gradients))
        trace = StepTrace(
            ops=dict(lens.ops),
            op_dtypes=dict(lens.op_dtypes),
            channels_last=dict(lens.channels_last),
            batch_shapes=self.host.shapes,
            counters=dict(live.counters),
        )
        self._losses.clear()
        checks = {item.card.name: item.evidence(live, trace) for item, _ in live.applied}
        return {"evidence": {name: [asdict(check) for check in found] for name, found in checks.items()}}

    def cut(self) -> Steps:
        """Do steps until a batch is cut. Return the change of the results, and whether the model draws random numbers."""
        for _ in range(CUT_STEPS):
            yield
            if (found := self.host.cut()) is not None:
                return found
        return {"difference": "no batch was cut in the observed steps", "draws": False}

    def boundary(self) -> Steps:
        """Return how batches would differ from the script's in an epoch after a change; "" if they do not."""
        yield from ()
        return {"why": self.host.boundary()}

    def profile(self, *, slice_s: float, quick: bool, folder: str | None = None) -> Steps:
        """Profile the script from its present step. `folder` is unused."""
        del folder
        profile = yield from profile_script_steps(self.host, slice_s=slice_s, quick=quick, progress=self._progress)
        self._losses.clear()
        return profile

    def validate(self, *, max_batches: int | None) -> Steps:
        """Return the mean training loss over the second half of the counted steps, the quality metric of a script."""
        del max_batches
        half = self._counted[len(self._counted) // 2 :]
        yield from ()
        return {"metrics": {TRAINING_LOSS: fmean(half)} if half else {}}

    def memory(self, *, reset: bool) -> Steps:
        """Return the peak memory since the last reset."""
        peak = peak_memory_bytes()
        if reset:
            reset_peak_memory()
        yield from ()
        return {"peak_bytes": peak, "device": self.host.live.device.type}

    def _held_after_zeroing(self, gradients: list[Any]) -> int:
        """Return how many gradients survive zeroing, which in a script comes after the step; 0 if zeroing frees them."""
        return 0 if self.host.live.zero_grad_to_none else sum(gradient is not None for gradient in gradients)

    def _backwards_per_step(self) -> int:
        """Return the number of batches per step observed so far."""
        return round(self.host.backwards / max(self.host.steps, 1))

    def _note_loss(self, loss: torch.Tensor) -> None:
        self._losses.append(loss.detach().clone())  # the script may later modify it in place

    def _step_loss(self) -> torch.Tensor:
        """Return the sum of this step's losses, as a tensor that is read later, so that nothing waits for the device."""
        total = sum(self._losses[1:], self._losses[0]) if self._losses else torch.zeros(())
        self._losses.clear()
        return total

    def _wait(self) -> None:
        if self.host.live.device.type != "cpu":
            torch.accelerator.synchronize()
