"""Train with narrower hidden layers: a share of their units is left out, from the start and for good.

What is called structured pruning is, when it is done before training, a smaller model, and that is what this is. It really
makes updates cheaper: rows and columns leave the weights, the gradients and the optimizer's state. The units with the
largest weights stay. In a freshly initialised model their size says nothing, and any choice would do as well; in a
pretrained one it keeps what matters more. Whether the job bears it, only the held-out proof can say.

Left out: masks that keep 2 of 4 weights. On a CPU they make nothing cheaper, because the kernels stay dense. NVIDIA GPUs
have kernels for them (torch.sparse.to_sparse_semi_structured), but torch brings no gradient for such a weight.

Relieves:  compute: products with the hidden units, and the optimizer's work on their weights.
Numerics:  training: a smaller model is trained.
Limits:    hidden layers inside an nn.Sequential: Linear, activation, Linear, or convolutions with BatchNorm between them.
           Saved weights have the job's own shapes, with zeros where a unit that was left out would be read: the job's own
           model loads them as they are and gives the same results, at its old width and speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.func import functional_call

from hasten.core.card import Bottleneck, Card, Check, Judge, Numerics, StepTrace
from hasten.core.errors import JobError
from hasten.core.facts import Facts
from hasten.core.job import Job, Loss
from hasten.core.live import LiveJob
from hasten.core.modules import HiddenLayer, hidden_layers
from hasten.core.optimization import Fit, Optimization
from hasten.core.seams import Seam, Undo
from hasten.core.seeding import kept_random_state

CANDIDATES = (0.75, 0.5)
ROUND_FROM, ROUND_TO = 64, 8
"""From this width on, layers keep a multiple of so many units: what vector and matrix units work on at once."""
SAME_LOSS = 1e-2
"""Relative difference of two losses of one model, which rounding explains and a wrong weight does not."""


@dataclass(frozen=True, kw_only=True)
class StructuredSparsity(Optimization):
    """Narrower hidden layers.

    Attributes:
        keep_frac: Share of each hidden layer's units that stays, above 0 and below 1.
    """

    keep_frac: float = 0.75

    card: ClassVar[Card] = Card(
        name="structured_sparsity",
        summary="narrower hidden layers: a share of their units is left out from the start",
        relieves=Bottleneck.COMPUTE,
        numerics=Numerics.TRAINING,
        judged_by=Judge.TIME_TO_TARGET,  # a few updates say nothing of what fewer units can learn in the end
        seam=Seam.MODEL,
        source="Li et al. 2017, Pruning Filters; Liu et al. 2019, Rethinking the Value of Network Pruning",
        hoped_gain=(
            "34 % less inference cost for VGG-16 and 38 % for ResNet-110 on CIFAR10, close to the original accuracy "
            "(https://arxiv.org/abs/1608.08710)"
        ),
        saves_memory=True,
        prior=0.4,
    )

    def __post_init__(self) -> None:
        if not 0.0 < self.keep_frac < 1.0:
            raise ValueError(f"keep_frac must be above 0 and below 1, not {self.keep_frac}")

    @classmethod
    def fit(cls, facts: Facts) -> Fit:
        """Fit where the structure proves units removable, and the job says what is not worse."""
        if not facts.job.hidden_layers:
            return Fit.no(
                "no hidden layer lies plainly between two layers of an nn.Sequential: elsewhere it cannot be seen who "
                "else reads its units"
            )
        if not facts.job.has_quality:
            return Fit.no("it trains a smaller model, and the job does not say what is not worse: set quality")
        # A layer between two narrowed ones loses rows and columns.
        share = (facts.compute_frac + facts.phase_frac.get("optimizer", 0.0)) * (1.0 - min(CANDIDATES) ** 2)
        return Fit.yes(max_gain_frac=share, settings=[cls(keep_frac=frac) for frac in CANDIDATES])

    def apply(self, live: LiveJob) -> Undo:
        """Cut the weights; the optimizer, which is made next, sees the narrow ones alone."""
        layers = hidden_layers(live.model)
        chosen = [(layer, self._kept(layer)) for layer in layers if self._num_kept(layer.width) < layer.width]
        if not chosen:
            raise JobError(
                f"structured_sparsity found no hidden layer that gets narrower at keep_frac = {self.keep_frac}: take it out "
                f"of the plan."
            )
        cuts: dict[nn.Module, _Cut] = {}
        for layer, kept in chosen:
            for made in filter(None, (layer.first, layer.norm)):
                cuts.setdefault(made, _Cut(made)).rows = kept
            cuts.setdefault(layer.second, _Cut(layer.second)).columns = kept
        undos = [cut.apply() for cut in cuts.values()]

        def undo() -> None:
            for undo_one in undos:
                undo_one()
            if hasattr(live, "optimizer"):  # it holds the narrow weights
                live.optimizer = live.job.optimizer(live.model)
                live.rebuild_schedule()

        return undo

    def _num_kept(self, width: int) -> int:
        multiple = ROUND_TO if width >= ROUND_FROM else 1
        return max(1, math.ceil(width * self.keep_frac / multiple) * multiple)

    def _kept(self, layer: HiddenLayer) -> torch.Tensor:
        """Which units stay: those with the largest weights, in and out; int64 `[kept]`, ascending."""
        inward: Any = layer.first.weight
        outward: Any = layer.second.weight
        sizes = inward.detach().flatten(1).norm(dim=1) * outward.detach().transpose(0, 1).flatten(1).norm(dim=1)
        largest: torch.Tensor = sizes.topk(self._num_kept(layer.width)).indices
        return largest.sort().values

    def evidence(self, live: LiveJob, trace: StepTrace) -> list[Check]:
        """Weights are narrower than they are saved; and as they are saved, the job's own model gives the same loss."""
        saved = live.model.state_dict()
        narrow = {
            name: p.numel() for name, p in live.model.named_parameters() if name in saved and p.shape != saved[name].shape
        }
        kept, whole = sum(narrow.values()), sum(saved[name].numel() for name in narrow)
        checks = [Check("weights cut", bool(narrow), f"{len(narrow)}, from {whole} numbers to {kept}")]
        if narrow and live.order is not None:
            here, there = losses_of(live, saved)
            same = abs(here - there) <= SAME_LOSS * abs(here)
            checks.append(Check("the saved weights give the same loss", same, f"{here:.6g} here, {there:.6g} as saved"))
        return checks


def losses_of(live: LiveJob, weights: dict[str, Any]) -> tuple[float, float]:
    """The loss of the run's first batch, as in a held-out measurement: of the live model, and of its like with `weights`."""
    order = live.order
    if order is None:
        raise JobError("a dataset that can only be read in order has no first batch to go back to.")
    modes = [(module, module.training) for module in live.model.modules()]
    live.model.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), kept_random_state():
            batch = live.to_device(live.pipeline.fetch(0, order(0)[0]))
            asked = _LossOf(live.model, live.job)
            mine = float(asked(batch))
            named = {f"model.{name}": value for name, value in weights.items() if isinstance(value, torch.Tensor)}
            return mine, float(functional_call(asked, named, (batch,)))
    finally:
        for module, training in modes:
            module.training = training


class _LossOf(nn.Module):
    """The job's loss as a module, so that other weights can be put in its model's place."""

    def __init__(self, model: nn.Module, job: Job) -> None:
        super().__init__()
        self.model = model
        self._job = job

    def forward(self, batch: Any) -> torch.Tensor:
        """Map a batch to its mean loss, a scalar."""
        loss = self._job.loss(self.model, batch)
        mean: torch.Tensor = loss.total / loss.weight if isinstance(loss, Loss) else loss
        return mean


class _Cut:
    """One layer without some of its rows, columns or both, which shows the world its old shape when it is saved and loaded.

    Attributes:
        rows: The units it still makes, int64; None makes all.
        columns: The units it still reads, int64; None reads all.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.rows: torch.Tensor | None = None
        self.columns: torch.Tensor | None = None
        held = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        self._whole = {name: tensor for name, tensor in held.items() if tensor.dim()}

    def apply(self) -> Undo:
        """Put narrow tensors in the place of the whole ones."""
        module, now = self._module, self._widths()
        before = {name: vars(module)[name] for name in now if name in vars(module)}
        for name, whole in self._whole.items():
            narrow = self._narrow(whole.detach())
            setattr(module, name, nn.Parameter(narrow) if isinstance(whole, nn.Parameter) else narrow)
        for name in before:
            setattr(module, name, now[name])
        hooks = self._hook()

        def undo() -> None:
            for hook in hooks:
                hook.remove()
            for name, value in {**self._whole, **before}.items():
                setattr(module, name, value)

        return undo

    def _hook(self) -> list[Any]:
        """Have the module saved and loaded in its old shape."""

        def save(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
            for name in self._whole:
                if prefix + name in state:
                    state[prefix + name] = self._widen(name, state[prefix + name].detach())

        def load(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
            for name, whole in self._whole.items():
                if prefix + name in state and state[prefix + name].shape == whole.shape:
                    state[prefix + name] = self._narrow(state[prefix + name])

        return [self._module.register_state_dict_post_hook(save), self._module.register_load_state_dict_pre_hook(load)]

    def _widths(self) -> dict[str, int]:
        """The attributes that say how wide the layer is, as they become; a layer has some of them."""
        made = {} if self.rows is None else dict.fromkeys(("out_features", "out_channels", "num_features"), len(self.rows))
        read = {} if self.columns is None else dict.fromkeys(("in_features", "in_channels"), len(self.columns))
        return {**made, **read}

    def _narrow(self, whole: torch.Tensor) -> torch.Tensor:
        if self.rows is not None:
            whole = whole.index_select(0, self.rows.to(whole.device))
        if self.columns is not None and whole.dim() > 1:
            whole = whole.index_select(1, self.columns.to(whole.device))
        return whole

    def _widen(self, name: str, narrow: torch.Tensor) -> torch.Tensor:
        """The whole tensor: units left out stay as they began, and who reads them has a weight of zero."""
        wide = self._whole[name].detach().to(narrow.device, narrow.dtype, copy=True)
        if self.columns is not None and wide.dim() > 1:
            every = wide.new_zeros(len(narrow), *wide.shape[1:])
            narrow = every.index_copy_(1, self.columns.to(wide.device), narrow)
        return narrow if self.rows is None else wide.index_copy_(0, self.rows.to(wide.device), narrow)
