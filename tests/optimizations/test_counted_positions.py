"""Test that the output layer gives the same gradients at counted positions only, and that a wrong mask is detected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the conventional name
from torch.utils.data import Dataset

import hasten
from hasten.core.errors import JobError
from hasten.core.job import Job, Mean
from hasten.core.optimization import clash
from hasten.optimizations import catalogue
from hasten.optimizations.counted_positions import CountedPositions
from hasten.optimizations.microbatch import Microbatch
from hasten.optimizations.precision import Precision
from hasten.optimizations.trim_padding import TrimPadding
from hasten.train.build import build
from hasten.train.loop import Loop
from hasten.train.validate import HeldOut
from hasten.tune.proof.numerics import judge_rounding
from hasten.tune.trials.gradients import gradient_batches, gradient_sample
from tests.optimizations.cases.counted_positions import RaggedCounted
from tests.optimizations.contract import CPU, Attention, facts, make_loop, run

IGNORED = -100


class Masked(nn.Module):
    """A language model with one attention block, whose feed-forward part is wider than the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.mix = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.feed, self.back, self.norm = nn.Linear(16, 64), nn.Linear(64, 16), nn.LayerNorm(16)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map [batch, length] to [batch, length, 20]."""
        x = self.embed(tokens)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v))
        x = x + self.back(F.gelu(self.feed(self.drop(x))))
        out: torch.Tensor = self.head(self.norm(x))
        return out


class Filled(Job):
    """Masked language modelling, where the loss uses about one label in seven."""

    batch_size = 4
    epochs = 4
    dtype = torch.float64

    def model(self) -> nn.Module:
        return Masked().to(self.dtype)

    def train_data(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randint(1, 20, (18, 12), generator=generator)
        masked = torch.rand(18, 12, generator=generator) < 0.15
        masked[:, 0] = True
        rows: Any = [(torch.where(m, 0, t), torch.where(m, t, IGNORED)) for t, m in zip(tokens, masked, strict=True)]
        return rows  # type: ignore[no-any-return]

    def valid_data(self) -> Dataset[Any] | None:
        return self.train_data()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def counted(self, batch: Any) -> torch.Tensor:
        mask: torch.Tensor = batch[1] != IGNORED
        return mask

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=IGNORED)

    def metric(self, model: nn.Module, batch: Any) -> dict[str, Mean]:
        out = model(batch[0])
        return {"untouched": Mean((out != 0).any(dim=-1).sum(), out.shape[0] * out.shape[1])}


class FilledFloat(Filled):
    """The same job in single precision."""

    dtype = torch.float32


class Lying(Filled):
    """Declares its last label unused in batches with more rows than the traced one, although its loss uses it."""

    def counted(self, batch: Any) -> torch.Tensor:
        mask = super().counted(batch).clone()
        if len(mask) > 2:
            mask[:, 0] = False
        return mask


def changed(**members: Any) -> type[Job]:
    return type("Changed", (Filled,), members)


def gradients(job: Job, *optimizations: Any) -> Any:
    loop = make_loop(job, *optimizations)
    return gradient_sample(loop.live, gradient_batches(loop, 3))


def by_parameter(job: Job, *optimizations: Any) -> dict[str, torch.Tensor]:
    live = make_loop(job, *optimizations).live
    live.model.train()
    torch.manual_seed(0)  # dropout draws the same numbers
    loss: Any = live.compute_loss(live.pipeline.fetch(0, [0, 1, 2, 3]))
    loss.backward()
    return {name: p.grad for name, p in live.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("job", "error"), [(Filled, 1e-13), (FilledFloat, 1e-6)])
def test_gradients_of_all_parameters_are_equal_to_rounding(job: type[Job], error: float) -> None:
    plain, counted = by_parameter(job()), by_parameter(job(), CountedPositions())
    assert plain.keys() == counted.keys() == dict(job().model().named_parameters()).keys()
    for name, gradient in plain.items():
        assert gradient.norm() > 1e-3, name
        assert (counted[name] - gradient).norm() <= error * gradient.norm(), name


@pytest.mark.parametrize("others", [(), (Microbatch(parts=2),), (TrimPadding(),)])
def test_a_run_is_the_same_to_rounding(others: Any) -> None:
    plan = (*others, CountedPositions())
    assert run(RaggedCounted(), 12, *plan) == pytest.approx(run(RaggedCounted(), 12, *others), rel=1e-4)


def curve(job: type[Job], seed: int) -> list[float]:
    loop = Loop(build(job(), seed=seed, device=CPU))
    loop.run(8)
    return loop.losses


def judged(job: type[Job]) -> Any:
    """Return the verdict of the numerics check on `job`."""
    counted = CountedPositions()
    others = [curve(job, 1), curve(job, 2)]
    return judge_rounding(run(job(), 8), run(job(), 8, counted), others, gradients(job()), gradients(job(), counted))


def test_the_gate_passes_a_promise_that_holds_and_finds_one_that_does_not() -> None:
    assert judged(Filled).verdict == "passed"
    verdict = judged(Lying)
    assert verdict.verdict == "failed"
    assert "gradient error" in verdict.why


def outputs(mask: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Return the output of one batch in training, without and with the technique under `mask`, and the counters."""
    seen, counters = [], {}
    for optimizations in ((), (CountedPositions(),)):
        live = make_loop(changed(counted=lambda _, batch: mask(batch))(), *optimizations).live
        model: Any = live.model
        model.drop.p = 0.0
        model.head.register_forward_hook(lambda _module, _args, out: seen.append(out.detach()))
        model.train()
        live.counters.clear()
        live.compute_loss(live.pipeline.fetch(0, [0, 1, 2]))
        counters = live.counters
    return seen[0], seen[1], counters


def test_a_mask_of_all_positions_changes_nothing() -> None:
    plain, counted, counters = outputs(lambda batch: torch.ones_like(batch[1], dtype=torch.bool))
    assert torch.equal(counted, plain)
    assert counters == {"positions_projected": 36, "positions_left_out": 0}


def test_a_mask_without_positions_gives_zeros() -> None:
    plain, counted, counters = outputs(lambda batch: torch.zeros_like(batch[1], dtype=torch.bool))
    assert counted.shape == plain.shape
    assert not counted.any()
    assert counters == {"positions_projected": 0, "positions_left_out": 36}


def test_other_positions_are_zeros_and_counted_ones_are_not_moved() -> None:
    plain, counted, counters = outputs(lambda batch: batch[1] != IGNORED)
    mask = counted.ne(0).any(dim=-1)
    assert int(mask.sum()) == counters["positions_projected"] == 36 - counters["positions_left_out"]
    assert 0 < int(mask.sum()) < 36
    assert torch.allclose(counted[mask], plain[mask], rtol=1e-12)
    assert plain[~mask].ne(0).all()


def test_a_batch_without_counted_positions_gives_no_gradient_and_no_error() -> None:
    class Nothing(Filled):
        def counted(self, batch: Any) -> torch.Tensor:
            return torch.zeros_like(batch[1], dtype=torch.bool)

        def loss(self, model: nn.Module, batch: Any) -> torch.Tensor | hasten.Loss:
            total: torch.Tensor = model(batch[0]).sum() * 0.0
            return total

    loop = make_loop(Nothing(), CountedPositions())
    loop.run(2)
    assert loop.losses == [0.0, 0.0]


def test_held_out_batches_get_the_whole_output() -> None:
    loop = make_loop(Filled(), CountedPositions())
    loop.run(2)
    loop.live.counters.clear()
    assert HeldOut(loop.live).measure()["untouched"] == 1.0
    assert loop.live.counters == {}


def test_a_mask_is_of_its_own_batch_alone() -> None:
    asked: list[int] = []

    def counted(job: Any, batch: Any) -> torch.Tensor:
        asked.append(len(batch[0]))
        return Filled.counted(job, batch)

    live = make_loop(changed(counted=counted)(), CountedPositions()).live
    batch = live.pipeline.fetch(0, [0, 1, 2])
    live.model.train()
    live.compute_loss(batch)
    assert live.model(batch[0]).ne(0).all()  # the loss is over, and so is the mask
    assert asked == [2, 3]  # the traced samples, and this batch
    live.model.eval()
    live.compute_loss(batch)
    assert asked == [2, 3]


def test_it_works_under_autocast() -> None:
    plain, counted = run(FilledFloat(), 6, Precision()), run(FilledFloat(), 6, Precision(), CountedPositions())
    assert counted == pytest.approx(plain, rel=2e-2)


def test_it_cannot_be_with_compile_or_cuda_graphs() -> None:
    for name in ("compile", "cuda_graphs"):
        assert clash(CountedPositions(), catalogue()[name]()) == f"`counted_positions` and `{name}` exclude each other"


# The choice of the layer.


def wrapped(job: type[Job]) -> list[str]:
    model = make_loop(job(), CountedPositions()).live.model
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def test_the_last_layer_is_found_though_others_are_wider() -> None:
    assert wrapped(Filled) == ["head"]


def test_a_layer_that_the_job_names_is_taken() -> None:
    assert wrapped(changed(output_layer="feed")) == ["feed"]


def test_looking_for_the_layer_leaves_no_trace() -> None:
    live, other = make_loop(Filled(), CountedPositions()).live, make_loop(Filled()).live
    assert all(
        torch.equal(mine, theirs) for mine, theirs in zip(live.model.parameters(), other.model.parameters(), strict=True)
    )
    assert all(parameter.grad is None for parameter in live.model.parameters())
    assert not any(module._forward_pre_hooks for module in live.model.modules())
    assert run(Filled(), 3, CountedPositions()) == pytest.approx(run(Filled(), 3), rel=1e-9)  # dropout drew the same numbers


class Pooled(Masked):
    """A second output, computed last from the first position only."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Linear(20, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out = super().forward(tokens)
        pooled: torch.Tensor = self.pool(out[:, 0]).sum()
        return out + pooled


class Twice(Masked):
    """Runs its head twice."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        out: torch.Tensor = self.head(self.head.weight[self.head(x).argmax(dim=-1)])
        return out


class Widest(Masked):
    """A narrow layer over the positions after the wide one."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        out: torch.Tensor = self.head(x) + self.tags(x).sum(dim=-1, keepdim=True)
        return out


class Tied(Masked):
    """Projects with the weight of the embedding."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(self.embed(tokens)), self.embed.weight)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Pooled, r"\[2, 12, 'features'\], .*, but it is pool \(Linear, input \[2, 20\]\)\. Name the output layer"),
        (Tied, r"but it is norm \(LayerNorm, input \[2, 12, 16\]\)\. Name"),
        (Twice, "is head, but it runs 2 times in one pass"),
        (Widest, "is tags, but head before it is wider"),
    ],
)
def test_a_layer_that_is_not_clear_is_refused(model: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make_loop(changed(model=lambda _: model().double())(), CountedPositions())


def test_a_name_that_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(
        JobError, match=r"output_layer is 'heads', but the model has no such module. Its modules: embed, qkv"
    ):
        make_loop(changed(output_layer="heads")(), CountedPositions())


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda batch: batch[1], r"counted returned a tensor \[2, 12\] of torch\.int64: return a bool tensor"),
        (lambda _: [True], "counted returned list: return a bool tensor"),
        (lambda _: torch.tensor(True), r"counted returned a tensor \[\] of torch\.bool"),
    ],
)
def test_an_invalid_mask_is_refused(mask: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make_loop(changed(counted=lambda _, batch: mask(batch))(), CountedPositions())


def test_a_job_without_counted_is_refused() -> None:
    with pytest.raises(JobError, match=r"needs the method counted\(self, batch\) in the job"):
        make_loop(Attention(), CountedPositions())


def test_the_bound_is_the_uncounted_share_of_the_products() -> None:
    given = facts(job={"has_counted": True}, counted_frac=0.25, op_frac={"addmm": 0.2, "mm": 0.3, "_log_softmax": 0.5})
    assert CountedPositions.fit(given).max_gain_frac == pytest.approx(0.5 * 0.5 * 0.75)
