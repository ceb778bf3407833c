"""Supervised training of a chat model on packed conversations, in the order of the curriculum.

    class Counsel(DialogueJob):
        prepared = "prepared"  # of `hasten.recipes.dialogue.prepare`

Rows of `row_tokens` tokens hold whole conversations, and each attends to itself alone. The loss counts where the assistant
speaks, and only there is the output layer computed. `chat_model` starts from your own model, `rank` trains LoRA adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the usual name
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hasten.core.errors import JobError
from hasten.core.job import Gathered, Job, Loss, Mean, Quality
from hasten.data.private.plan import PrivatePlan
from hasten.recipes.dialogue.model import open_model, packed_logits, small_model, with_adapters
from hasten.recipes.dialogue.packing import PackedConversations, numbers_of, packed_batch
from hasten.recipes.dialogue.prepare import TOKENIZER, TRAIN, VALID
from hasten.recipes.dialogue.synth import DrawnTalks, drawn_folder
from hasten.recipes.dialogue.tokens import ChatTokens, load_tokens
from hasten.recipes.schedule import warmup_cosine
from hasten.recipes.weights import load_weights

if TYPE_CHECKING:
    from hasten.recipes.dialogue.evaluation.gating import Check

_TOTALS = "totals"


class DialogueJob(Job):
    """Train a chat model on what the assistant says. Settings are class attributes.

    The samples are rows in the order of the curriculum, so they are not shuffled; each stage has a shuffle of its own.

    Attributes:
        prepared: Folder of `prepare`. None generates the conversations of `drawn`.
        private: Folder of the plan with which they were encrypted; they are read as its role `trainer`.
        stages: Stages to train on; None trains on all, in their order.
        row_tokens: Tokens in a row. Longer conversations are split.
        window: Conversations packed together; they move by less than this number.
        passes: Passes over a stage before the next one begins. Leave `epochs` at 1, or the curriculum begins again.
        chat_model: Folder of a model of Transformers to start from; None makes a small one.
        width: Width of the small model.
        depth: Layers of the small model.
        heads: Attention heads of the small model.
        start: Weights of an earlier run to start from, such as those of the stage before: FILE.safetensors or model.pt.
        rank: Rank of LoRA adapters; None trains all weights.
        rate: Peak learning rate.
        warmup_frac: Fraction of the run in which the rate rises; then it falls along a half cosine.
        bias_counts: Count which groups the conversations mention while a run trains on them, in `bias.json` of its folder.
        max_perplexity: Largest perplexity of held-out conversations, for the gates; None has no such gate.
        min_voice_consistency: Smallest consistency of the voice of each person, for the gates.
        drawn: The conversations to generate if `prepared` is None.
    """

    prepared: ClassVar[str | None] = None
    private: ClassVar[str | None] = None
    stages: ClassVar[Sequence[str] | None] = None
    row_tokens: ClassVar[int] = 1024
    window: ClassVar[int] = 1024
    passes: ClassVar[int] = 1
    chat_model: ClassVar[str | None] = None
    width: ClassVar[int] = 128
    depth: ClassVar[int] = 4
    heads: ClassVar[int] = 4
    start: ClassVar[str | None] = None
    rank: ClassVar[int | None] = None
    rate: ClassVar[float] = 1e-3
    warmup_frac: ClassVar[float] = 0.05
    bias_counts: ClassVar[bool] = False
    max_perplexity: ClassVar[float | None] = None
    min_voice_consistency: ClassVar[float] = 0.85
    drawn: ClassVar[DrawnTalks] = DrawnTalks()

    batch_size = 8
    epochs = 1
    shuffle = False
    clip_norm = 1.0
    quality = Quality(metric="loss", direction="min", margin=0.02)

    def __init_subclass__(cls, **settings: Any) -> None:
        """Clear `forms` of a subclass that does not set its own: inherited forms would train on other conversations."""
        super().__init_subclass__(**settings)
        if "forms" not in vars(cls):
            cls.forms = ()

    @cached_property
    def folder(self) -> Path:
        """The prepared folder."""
        if self.prepared is None:
            return drawn_folder(self.drawn)
        path = Path(self.prepared)
        if not (path / TRAIN).is_dir():
            raise JobError(
                f"{path} is not prepared: call hasten.recipes.dialogue.prepare.prepare(conversations, {str(path)!r})."
            )
        return path

    @cached_property
    def plan(self) -> PrivatePlan | None:
        """The plan of encrypted conversations."""
        return None if self.private is None else PrivatePlan.load(self.private)

    @cached_property
    def tokens(self) -> ChatTokens:
        """The tokenizer of the prepared folder."""
        return load_tokens(self.folder / TOKENIZER)

    def model(self) -> nn.Module:
        """Create the model.

        Raises:
            JobError: A setting does not fit.
        """
        network = self.starting_model()
        return with_adapters(network, self.rank) if self.rank is not None else network

    def starting_model(self) -> nn.Module:
        """Create the model without adapters, as training starts from it."""
        count = self.tokens.num_tokens
        if self.chat_model is None:
            network = small_model(count, width=self.width, depth=self.depth, heads=self.heads, pad=self.tokens.pad)
        else:
            network = open_model(self.chat_model)
            have = _num_tokens(network)
            if have < count:
                raise JobError(
                    f"{self.chat_model} knows {have:,} tokens, but the conversations were prepared with a tokenizer of "
                    f"{count:,}: prepare them with the tokenizer of this model."
                )
        if self.start is not None:
            load_weights(network, Path(self.start))
        return network

    def train_data(self) -> Dataset[Any]:
        """Return the packed conversations to train on, in the order of the curriculum."""
        return self.train_rows

    def valid_data(self) -> Dataset[Any]:
        """Return the packed conversations held out."""
        return self.rows(VALID)

    @cached_property
    def train_rows(self) -> PackedConversations:
        """The rows to train on."""
        return self.rows(TRAIN, self.passes)

    def rows(self, part: str, passes: int = 1) -> PackedConversations:
        """Return the rows of a part of the prepared folder."""
        return PackedConversations(
            self.folder / part,
            length=self.row_tokens,
            window=self.window,
            seed=self.seed,
            passes=passes,
            pad=self.tokens.pad,
            stages=self.stages,
            private=self.plan,
        )

    def texts(self, samples: Sequence[int]) -> list[str]:
        """Return the texts of the conversations that begin in these training samples, for the bias monitor."""
        pieces = np.concatenate([self.train_rows.pieces(row) for row in samples])
        begun = pieces[pieces[:, 2] == 0]
        texts = list[str]()
        for stage in np.unique(begun[:, 0]).tolist():
            taken = self.train_rows.stores[stage].take(begun[begun[:, 0] == stage, 1], ["tokens"])
            texts += self.tokens.decode(numbers_of(ids).tolist() for ids in taken["tokens"] if ids is not None)
        return texts

    def checks(self) -> list[Check]:
        """Return the gates that trained weights must pass: `hasten recipes evaluate`. See `evaluation.of_job`."""
        from hasten.recipes.dialogue.evaluation.of_job import checks_of  # noqa: PLC0415  training needs none of it

        return checks_of(self)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the fused optimizer, which updates all weights in one call."""
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        return torch.optim.AdamW(weights, lr=self.rate, weight_decay=0.01, fused=True)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler:
        """Increase the learning rate linearly, then decay it along a half cosine."""
        return warmup_cosine(optimizer, num_updates, warmup_frac=self.warmup_frac)

    def collate(self, samples: list[Any]) -> dict[str, Any]:
        """Put the conversations of the rows end to end."""
        return packed_batch(samples)

    def token_losses(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of each token that counts, `[counted]`."""
        logits = packed_logits(model, batch["ids"], batch["packing"], batch["where"])
        return F.cross_entropy(logits.float(), batch["wanted"], reduction="none")

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Compute the mean loss of the tokens that the assistant says."""
        losses = self.token_losses(model, batch)
        return Loss(losses.sum(), max(len(losses), 1))

    def metric(self, model: nn.Module, batch: Any) -> Mapping[str, Mean | Gathered]:
        """Gather the losses, for the perplexity."""
        losses = self.token_losses(model, batch)
        return {_TOTALS: Gathered([(float(losses.double().sum()), len(losses))])}

    def whole_metric(self, name: str, items: list[Any]) -> Mapping[str, float]:
        """Return `perplexity` of the tokens that the assistant says."""
        if name != _TOTALS:
            return super().whole_metric(name, items)
        total, count = np.sum(items, axis=0)
        return {"perplexity": float(np.exp(total / max(count, 1)))}


def _num_tokens(network: nn.Module) -> int:
    chat: Any = network
    return int(chat.get_input_embeddings().weight.shape[0])
