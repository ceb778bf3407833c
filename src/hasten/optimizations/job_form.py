"""The same job, written otherwise by its owner: faster kernels, cheaper augmentation, metrics off the critical path.

Relieves:  whatever the other form makes cheaper; only a trial tells.
Numerics:  training: nobody but its owner says that it is the same job, so its held-out quality is what counts, and that is
           always measured by the job as it was written first.
Limits:    the two forms must train one model, in batches of one size, for as many updates; a job names its forms in `forms`.
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
"""What both forms must say alike."""


@dataclass(frozen=True, kw_only=True)
class JobForm(Optimization):
    """Another form of the job.

    Attributes:
        form: Name of its class, one of the job's `forms`.
    """

    form: str = ""

    card: ClassVar[Card] = Card(
        name="job_form",
        summary="another form of the same job, which its owner wrote, takes the place of the one that was named",
        relieves=Bottleneck.OTHER,
        numerics=Numerics.TRAINING,
        seam=Seam.PROCESS,
        source="hasten.Job, `forms`",
        prior=0.9,
    )

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where the job has other forms, and says what is not worse."""
        job = facts.job
        if not job.forms:
            return Fit.no("the job has no other form: a job may name some in `forms`")
        if not job.has_quality:
            return Fit.no("another form may learn otherwise, and the job does not say what is not worse: set quality")
        return Fit.yes(max_gain_frac=sum(facts.phase_frac.values()), settings=[cls(form=form) for form in job.forms])

    def apply(self, live: LiveJob) -> Undo:
        """Put the other form in the job's place, before anything is made of it."""
        written = live.job
        form = {kind.__name__: kind for kind in other_forms(written)}.get(self.form)
        if form is None:
            known = ", ".join(kind.__name__ for kind in other_forms(written)) or "none"
            raise JobError(f"{type(written).__name__} has no form {self.form!r}; it has: {known}.")
        job = form()
        check_job(job)
        odd = [name for name in SHARED if getattr(job, name) != getattr(written, name)]
        if odd:
            seen = "; ".join(f"{name} is {getattr(written, name)!r} and {getattr(job, name)!r}" for name in odd)
            raise JobError(f"{type(written).__name__} and its form {self.form} are two jobs: {seen}. Make them alike.")
        before = live.job, live.zero_grad_to_none, live.read_every
        live.job, live.zero_grad_to_none, live.read_every = job, job.zero_grad_to_none, job.read_every

        def undo() -> None:
            live.job, live.zero_grad_to_none, live.read_every = before
            if live.reopen is not None:
                live.reopen(live)

        return undo

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """The step was one of the other form."""
        found, written = type(live.job).__name__, type(live.as_written).__name__
        return [Check("form of the job", found == self.form and found != written, f"{found}; written as {written}")]


def other_forms(job: Job) -> tuple[type[Job], ...]:
    """The forms of a job that are not its own."""
    return tuple(form for form in job.forms if form is not type(job))
