"""Use an alternative form of the job: faster kernels, cheaper augmentation, metrics outside the critical path.

Relieves:  other: anything that the alternative form makes cheaper. Only a trial can show it.
Numerics:  training: only the author of the job claims that both forms are the same job. Held-out quality decides, and it is
           always measured by the original form.
Limits:    both forms must train the same model, with the same batch size and number of updates. A job lists its forms in
           `forms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hasten.core.card import Bottleneck, Card, Check, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.job import Job, check_job
from hasten.core.live import LiveJob
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo

SHARED = ("batch_size", "epochs", "num_updates", "accumulation", "clip_norm", "seed", "shuffle", "quality")
"""Settings that must be equal in both forms."""


@dataclass(frozen=True, kw_only=True)
class JobForm(Optimization):
    """An alternative form of the job.

    Attributes:
        form: Name of its class, one of the job's `forms`.
    """

    form: str = ""

    card: ClassVar[Card] = Card(
        name="job_form",
        summary="use an alternative form of the job, which the author of the job has written",
        relieves=Bottleneck.OTHER,
        numerics=Numerics.TRAINING,
        seam=Seam.PROCESS,
        source="hasten.Job, `forms`",
        prior=0.9,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Applies if the job lists alternative forms and defines a quality metric."""
        job = facts.job
        if not job.forms:
            return Fit.no("the job lists no alternative form in `forms`")
        if not job.has_quality:
            return Fit.no("another form may learn differently, and the job defines no quality metric: set quality")
        return Fit.yes(max_gain_frac=sum(facts.phase_frac.values()), settings=[cls(form=form) for form in job.forms])

    def apply(self, live: LiveJob) -> Undo:
        """Replace the job by its other form, before its model, data and optimizer are created."""
        written = live.job
        form = {kind.__name__: kind for kind in other_forms(written)}.get(self.form)
        if form is None:
            known = ", ".join(kind.__name__ for kind in other_forms(written)) or "none"
            raise JobError(f"{type(written).__name__} has no form {self.form!r}. Its forms: {known}.")
        job = form()
        check_job(job)
        different = [name for name in SHARED if getattr(job, name) != getattr(written, name)]
        if different:
            values = "; ".join(f"{name} is {getattr(written, name)!r} and {getattr(job, name)!r}" for name in different)
            raise JobError(f"{type(written).__name__} and its form {self.form} differ: {values}. Make these settings equal.")
        before = live.job, live.zero_grad_to_none, live.read_every
        live.job, live.zero_grad_to_none, live.read_every = job, job.zero_grad_to_none, job.read_every

        def undo() -> None:
            live.job, live.zero_grad_to_none, live.read_every = before
            if live.reopen is not None:
                live.reopen(live)

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Check that the step ran in the other form."""
        active, written = type(live.job).__name__, type(live.as_written).__name__
        return [Check("form of the job", active == self.form and active != written, f"{active}, original {written}")]


def other_forms(job: Job) -> tuple[type[Job], ...]:
    """Return the forms of a job other than its own class."""
    return tuple(form for form in job.forms if form is not type(job))
