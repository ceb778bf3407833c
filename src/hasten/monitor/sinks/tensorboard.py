"""Windows as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hasten.monitor.sink import SinkCard
from hasten.monitor.window import Start, Window


class TensorBoard:
    """Writes scalars. The first part of a metric's name is its group.

    Option: `dir`, by default `tensorboard` in the run's folder.
    """

    card: ClassVar[SinkCard] = SinkCard(
        name="tensorboard", summary="TensorBoard event files", module="tensorboard", extra="tracking"
    )

    def __init__(self, start: Start, folder: Path, dir: str = "") -> None:  # noqa: A002 - the name of the option
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(dir or str(folder / "tensorboard"))

    def write(self, window: Window) -> None:
        """Write a scalar for each metric, and the marks as texts."""
        ended = window.at + window.seconds
        for name, value in window.metrics().items():
            self._writer.add_scalar(name.replace(".", "/", 1), value, window.to_step, walltime=ended)
        for mark in window.marks:
            words = mark.words or f"{mark.seconds:.3f} s"
            self._writer.add_text(f"marks/{mark.name}", words, mark.step, walltime=mark.at)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
