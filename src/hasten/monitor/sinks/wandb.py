"""Windows as the history of a Weights & Biases run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from hasten.monitor.sink import SinkCard
from hasten.monitor.window import Start, Window


class WeightsAndBiases:
    """Begins a run of its own next to one that the script has begun. It works offline unless told otherwise.

    Options: `project`; `mode`, `offline` (files in the run's folder, for `wandb sync`) or `online`; `entity`, user or team.
    """

    card: ClassVar[SinkCard] = SinkCard(
        name="wandb", summary="Weights & Biases, offline by default", module="wandb", extra="tracking"
    )

    def __init__(self, start: Start, folder: Path, project: str = "hasten", mode: str = "offline", entity: str = "") -> None:
        import wandb

        self._run: Any = wandb.init(
            project=project,
            entity=entity or None,
            name=start.run,
            dir=str(folder),
            mode=mode,
            config={"host": start.host, "ranks": start.world},
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
        )

    def write(self, window: Window) -> None:
        """Log the window at its last step. Windows without steps are left out: a step has one row of history."""
        if window.steps:
            row = {name.replace(".", "/", 1): value for name, value in window.metrics().items()}
            self._run.log(row, step=window.to_step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
