"""Training on preferences: of two last answers, make the better one more likely than the worse (DPO).

    class Prefer(PreferenceJob):
        prepared = "prepared"  # conversations with `rejected`
        start = "supervised.safetensors"  # where training starts, and what it is compared with

The model at the start is the reference. It never changes, so the probabilities that it gives are computed once and kept on
this machine, and no second model takes memory. Both answers of all pairs of a batch are documents of one packed row.

Source: Rafailov et al. 2023, "Direct Preference Optimization". Left out: its variants, and other regularisation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  the usual name
from torch.utils.data import Dataset

from hasten.core.batch import map_tensors
from hasten.core.errors import DataError, JobError
from hasten.core.job import Gathered, Loss, Mean
from hasten.core.packing import Packing
from hasten.core.seeding import kept_random_state
from hasten.data.private.plan import PrivatePlan
from hasten.recipes.dialogue.job import DialogueJob
from hasten.recipes.dialogue.packing import numbers_of
from hasten.recipes.dialogue.prepare import TRAIN, VALID
from hasten.recipes.dialogue.stages import open_stages, opened
from hasten.recipes.drawn import drawn_once

Tokens = npt.NDArray[np.int64]


class Pair(NamedTuple):
    """Two answers to the same conversation.

    Attributes:
        chosen: Tokens of the conversation with the better last answer, `[length]`.
        rejected: The same with the worse one.
        prompt: Number of tokens before the answers.
        reference: Log-probabilities of the two answers under the model at the start, `[2]`; NaN if not computed.
    """

    chosen: Tokens
    rejected: Tokens
    prompt: int
    reference: npt.NDArray[np.float32]


class Pairs(Dataset[Pair]):
    """The pairs of a part of a prepared folder, in the order of the stages.

    Args:
        folder: The part.
        longest: Longest conversation in tokens. Of longer prompts, the beginning is left out.
        reference: Log-probabilities under the model at the start, float32 `[pairs, 2]`.
        stages: Stages to read; None reads all.
        private: The plan of encrypted tokens. Pairs of persons who were erased are left out.

    Attributes:
        versions: A hash of what each store contains.

    Raises:
        DataError: There are no pairs.
    """

    def __init__(
        self,
        folder: Any,
        *,
        longest: int,
        reference: npt.NDArray[np.float32] | None = None,
        stages: Sequence[str] | None = None,
        private: PrivatePlan | None = None,
    ) -> None:
        self._longest, self._reference = longest, reference
        found = {name: store for name, store in open_stages(folder).items() if stages is None or name in stages}
        have = [store for store in found.values() if "rejected_tokens" in store.columns]
        self._stores = [opened(store, private) for store in have]
        self.versions = [hashlib.sha256(repr(store.manifest).encode()).hexdigest() for store in have]
        rows = []
        for number, store in enumerate(self._stores):
            taken = store.take(range(len(store)), ["prompt", "rejected_tokens"])
            pairs = zip(taken["prompt"], taken["rejected_tokens"], strict=True)
            rows += [(number, row) for row, pair in enumerate(pairs) if all(map(_is_there, pair))]
        if not rows:
            raise DataError(f"{folder} has no pairs: give conversations with the field 'rejected', a worse last answer.")
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Pair:
        number, row = self._rows[index]
        taken = self._stores[number].take([row], ["tokens", "rejected_tokens", "prompt"])
        chosen, rejected = (numbers_of(taken[name][0]) for name in ("tokens", "rejected_tokens"))
        prompt = int(taken["prompt"][0])
        unknown = np.full(2, np.nan, np.float32)
        known = unknown if self._reference is None else self._reference[index]
        skipped = min(max(len(chosen), len(rejected)) - self._longest, prompt - 1)
        first = max(skipped, 0)
        better, worse = (ids[first : first + self._longest].astype(np.int64) for ids in (chosen, rejected))
        return Pair(better, worse, prompt - first, known)


def _is_there(value: Any) -> bool:
    """Whether a value of a column, plain or of Arrow, is not null."""
    return bool(value.is_valid) if isinstance(value, pa.Scalar) else value is not None


class PreferenceJob(DialogueJob):
    """Train a chat model on pairs of answers. Settings are class attributes.

    Attributes:
        beta: How much a distance from the model at the start costs; small values allow more.
        row_tokens: Longest conversation in tokens. Of longer prompts, the beginning is left out.
    """

    beta: ClassVar[float] = 0.1
    rate: ClassVar[float] = 1e-4

    batch_size = 4
    shuffle = True

    def starting_model(self) -> nn.Module:
        """Create the model without adapters.

        Raises:
            JobError: There is nothing to start from.
        """
        if self.start is None and self.chat_model is None:
            raise JobError(
                f"{type(self).__name__} has nothing to start from: set `start` to the weights of a supervised run, or "
                f"`chat_model` to the folder of a model."
            )
        return super().starting_model()

    def train_data(self) -> Dataset[Any]:
        """Return the pairs to train on."""
        return self.pairs(TRAIN)

    def valid_data(self) -> Dataset[Any]:
        """Return the pairs held out."""
        return self.pairs(VALID)

    def pairs(self, part: str) -> Pairs:
        """Return the pairs of a part of the prepared folder, with the probabilities of the model at the start."""
        return Pairs(
            self.folder / part,
            longest=self.row_tokens,
            reference=self.reference(part),
            stages=self.stages,
            private=self.plan,
        )

    def reference(self, part: str) -> npt.NDArray[np.float32] | None:
        """Return the log-probabilities of both answers under the model at the start, float32 `[pairs, 2]`.

        They are computed on the GPU if there is one, and kept on this machine by a hash of the weights and the pairs.
        """
        pairs = Pairs(self.folder / part, longest=self.row_tokens, stages=self.stages, private=self.plan)
        digest = hashlib.blake2b(repr((self.row_tokens, len(pairs), pairs.versions)).encode(), digest_size=16)
        for name, value in self.reference_model.state_dict().items():
            digest.update(name.encode() + value.contiguous().view(torch.uint8).numpy().tobytes())

        def compute(folder: Path) -> None:
            folder.mkdir()
            np.save(folder / "reference.npy", self._reference(pairs), allow_pickle=False)

        folder = drawn_once(
            f"reference-{digest.hexdigest()}", compute, words="computing the probabilities of the model at the start"
        )
        kept: npt.NDArray[np.float32] = np.load(folder / "reference.npy", allow_pickle=False)
        return kept

    def _reference(self, pairs: Pairs) -> npt.NDArray[np.float32]:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = self.reference_model.to(device).eval()
        found = []
        with torch.inference_mode():
            for first in range(0, len(pairs), self.batch_size):
                batch = self.collate([pairs[row] for row in range(first, min(first + self.batch_size, len(pairs)))])
                batch = map_tensors(batch, lambda tensor: tensor.to(device))
                found.append(self.answers(model, batch).float().cpu().numpy())
        self.reference_model.cpu()
        return np.concatenate(found).astype(np.float32)

    @cached_property
    def reference_model(self) -> nn.Module:
        """The model at the start."""
        with kept_random_state():  # else adapters would begin with other numbers
            return self.starting_model()

    def texts(self, samples: Sequence[int]) -> list[str]:
        """Return the texts of these pairs: each conversation with the better answer, and the worse answer."""
        pairs = Pairs(self.folder / TRAIN, longest=self.row_tokens, stages=self.stages, private=self.plan)
        found = (pairs[row] for row in samples)
        return self.tokens.decode([ids for pair in found for ids in (pair.chosen, pair.rejected[pair.prompt :])])

    def collate(self, samples: list[Pair]) -> dict[str, Any]:
        """Put both answers of each pair end to end: chosen, rejected, chosen, ..."""
        ids, where, lengths, counts = list[Tokens](), list[Tokens](), list[int](), list[int]()
        for pair in samples:
            for answer in (pair.chosen, pair.rejected):
                where.append(np.arange(pair.prompt - 1, len(answer) - 1) + sum(lengths))
                ids.append(answer)
                lengths.append(len(answer))
                counts.append(len(answer) - pair.prompt)
        row, positions = (torch.from_numpy(np.concatenate(parts)) for parts in (ids, where))
        return {
            "ids": row[None],
            "packing": Packing.of(lengths),
            "where": positions,
            "wanted": row[positions + 1],
            "answer": torch.repeat_interleave(torch.tensor(counts)),
            "reference": torch.from_numpy(np.stack([pair.reference for pair in samples])),
        }

    def answers(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the log-probability of both answers of each pair, `[pairs, 2]`."""
        losses = self.token_losses(model, batch)
        summed = losses.new_zeros(batch["reference"].numel())
        return -summed.index_add(0, batch["answer"], losses).view(-1, 2)

    def margins(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return by how much each pair is ordered better than at the start, times `beta`, `[pairs]`."""
        gained = self.answers(model, batch) - batch["reference"]
        margins: torch.Tensor = self.beta * (gained[:, 0] - gained[:, 1])
        return margins

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """Compute the mean loss of the pairs."""
        margins = self.margins(model, batch)
        return Loss(-F.logsigmoid(margins).sum(), len(margins))

    def metric(self, model: nn.Module, batch: Any) -> Mapping[str, Mean | Gathered]:
        """Return `accuracy`, the share of pairs ordered better than at the start, and `margin`."""
        margins = self.margins(model, batch)
        return {
            "accuracy": Mean(int((margins > 0).sum()), len(margins)),
            "margin": Mean(float(margins.double().sum()), len(margins)),
        }
