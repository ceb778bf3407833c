"""Write metric reports in a background thread.

Relieves:  logging: with a slow disk or a slow progress display, the training thread waits at each report.
Numerics:  exact: the same lines in the same order.
Limits:    the report callback runs in the background thread, which shares Python's global interpreter lock with training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.facts import Facts
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo, replace_attribute
from hasten.core.source_edits import SourceEdits, UnwritableError


@dataclass(frozen=True, kw_only=True)
class AsyncLogging(Optimization):
    """Pass reports through a bounded queue. No report is dropped."""

    card: ClassVar[Card] = Card(
        name="async_logging",
        summary="write metric reports in a background thread",
        relieves=Bottleneck.LOGGING,
        numerics=Numerics.EXACT,
        seam=Seam.AROUND,
        source="detectron2, asynchronous writing of metrics (https://github.com/facebookresearch/detectron2/pull/4903)",
        prior=0.5,
        event="report",
        script_advice=(
            "each script reports in its own way: pass logging.handlers.QueueHandler(queue) to its logger, "
            "and write its files in a logging.handlers.QueueListener"
        ),
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if metric reports take time. At most the time of the reports can be saved."""
        if facts.epoch_s > 0 and facts.report_s <= 0:
            return Fit.no("no metric report was measured")
        share = facts.epoch_frac(facts.report_s * facts.reports_per_epoch)
        return Fit.yes(max_gain_frac=share, settings=[cls()])

    def apply(self, live: LiveJob) -> Undo:
        """Enable background reports."""
        return replace_attribute(live.around, "report_async", value=True)

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the background thread wrote at least one report."""
        seen = int(trace.counters.get("reports_in_background", 0))
        return [Check("reports written in the background", seen > 0, f"{seen} in a rehearsal")]

    def write_patch(self, script: SourceEdits) -> str:
        """Raise UnwritableError: each script reports in its own way."""
        raise UnwritableError(
            "each script reports in its own way",
            "lines = queue.SimpleQueue()",
            "handler = logging.handlers.QueueHandler(lines)",
            "listener = logging.handlers.QueueListener(lines, *logging.getLogger().handlers)",
            "logging.getLogger().handlers = [handler]",
            "listener.start()  # and listener.stop() at the end",
        )
