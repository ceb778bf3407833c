"""Turn recordings into embeddings of their speakers, by a small network trained here or by your own model.

    class Speakers(SpeakerJob):  # hasten run speakers.py:Speakers
        folder = "recordings"

    network = Speakers().network("model.safetensors")
    write_embeddings("voices", paths, network, settings=Speakers.settings)

The network is an x-vector in small (Snyder et al., ICASSP 2018): convolutions over time, then mean and deviation over all
frames. It subtracts the mean of each band, so that it learns voices and not the frequency response of microphones.
Left out: noise, reverberation, and a backend that calibrates similarities.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler

from hasten.core.errors import CorruptError, DataError, JobError
from hasten.core.job import Gathered, Job, Quality
from hasten.data.cache.contract import Cache
from hasten.data.sound import ENDINGS
from hasten.data.store.write import StoreWriter
from hasten.recipes.dialogue.voice.features import MelSettings, log_mel_of_file
from hasten.recipes.schedule import warmup_cosine
from hasten.recipes.weights import load_weights
from hasten.train.build import build
from hasten.train.loop import Loop

Embedder: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Your own model: log-mel features float32 `[batch, frames, mels]` to embeddings `[batch, size]`."""
_DIGIT = re.compile(r"\d+_(\w+)_\d+")
"""Names of the Free Spoken Digit Dataset: digit, speaker, take."""
_SCALE, _MARGIN = 20.0, 0.2


class SpeakerNetwork(nn.Module):
    """Map log-mel features `[batch, frames, mels]` to embeddings of length 1, `[batch, size]`.

    Args:
        mels: Number of mel bands.
        width: Channels of the convolutions.
        size: Numbers of an embedding.
    """

    def __init__(self, mels: int, *, width: int = 128, size: int = 64) -> None:
        super().__init__()
        layers = list[nn.Module]()
        for channels, kernel, dilation in ((mels, 5, 1), (width, 3, 2), (width, 3, 3)):
            layers.append(nn.Conv1d(channels, width, kernel, dilation=dilation, padding="same", bias=False))
            layers += [nn.BatchNorm1d(width), nn.ReLU()]
        self.frames, self.out = nn.Sequential(*layers), nn.Linear(2 * width, size)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the embeddings."""
        hidden = self.frames((features - features.mean(dim=1, keepdim=True)).transpose(1, 2))
        deviation = (hidden.var(dim=2, unbiased=False) + 1e-5).sqrt()
        return functional.normalize(self.out(torch.cat((hidden.mean(dim=2), deviation), dim=1)))


class SpeakerClassifier(nn.Module):
    """A network with one direction per speaker, which is needed only to train it."""

    def __init__(self, network: SpeakerNetwork, num_speakers: int) -> None:
        super().__init__()
        self.network = network
        self.speakers = nn.Parameter(torch.randn(num_speakers, network.out.out_features))

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings, and their cosines to the speakers, `[batch, speakers]`."""
        embeddings = self.network(features)
        return embeddings, embeddings @ functional.normalize(self.speakers).T


class SpeakerJob(Job):
    """Train a network that tells speakers apart: subclass it and set your folder.

    Attributes:
        folder: Folder of the recordings, with one channel each.
        settings: The features.
        cache: Where features are kept; None keeps nothing.
        num_frames: Frames of a training sample. Shorter recordings are repeated.
        width: Channels of the network.
        size: Numbers of an embedding.
        valid_every: One recording of each speaker in this many is held out.
        rate: Peak learning rate.
    """

    folder: ClassVar[str | None] = None
    settings: ClassVar[MelSettings] = MelSettings(rate=8_000, window=256, hop=80, num_mels=40)
    cache: ClassVar[Cache | None] = None
    num_frames: ClassVar[int] = 48
    width: ClassVar[int] = 128
    size: ClassVar[int] = 64
    valid_every: ClassVar[int] = 5
    rate: ClassVar[float] = 2e-3

    batch_size = 32
    epochs = 6
    quality = Quality(metric="equal_error_rate", direction="min", margin=0.02)

    def speaker(self, path: Path) -> str:
        """Return the speaker of a file: from a name like `7_anna_12.wav`, otherwise the folder. Override it for others."""
        named = _DIGIT.fullmatch(path.stem)
        return named[1] if named else path.parent.name

    @cached_property
    def recordings(self) -> dict[str, list[Path]]:
        """The recordings of each speaker, in the order of their names.

        Raises:
            DataError: There are fewer than two speakers, or too few recordings of one to hold any out.
        """
        if self.folder is None:
            raise JobError(f"{type(self).__name__}.folder is not set: give the folder of the recordings.")
        found = dict[str, list[Path]]()
        for path in sorted(path for path in Path(self.folder).rglob("*") if path.suffix.lower() in ENDINGS):
            found.setdefault(self.speaker(path), []).append(path)
        if len(found) < 2 or min(map(len, found.values())) < self.valid_every:
            counts = ", ".join(map(str, sorted(map(len, found.values()))))
            raise DataError(
                f"{self.folder} has {len(found)} speakers with {counts or 'no'} recordings: at least 2 speakers with "
                f"{self.valid_every} recordings each are needed."
            )
        return found

    def _part(self, *, held_out: bool) -> list[tuple[str, int]]:
        return [
            (str(path), number)
            for number, paths in enumerate(self.recordings.values())
            for place, path in enumerate(paths)
            if (place % self.valid_every == self.valid_every - 1) == held_out
        ]

    def train_data(self) -> Any:
        """Return the files to train on, with the number of the speaker."""
        return self._part(held_out=False)

    def valid_data(self) -> Any:
        """Return the held-out files. Their speakers are those of the training files."""
        return self._part(held_out=True)

    def model(self) -> SpeakerClassifier:
        """Create the network with one direction per speaker."""
        network = SpeakerNetwork(self.settings.num_mels, width=self.width, size=self.size)
        return SpeakerClassifier(network, len(self.recordings))

    def network(self, weights: str | os.PathLike[str]) -> SpeakerNetwork:
        """Return the trained network from a file that `hasten checkpoints export` wrote.

        Raises:
            DataError: The file is missing, truncated or of another kind.
            JobError: The file belongs to another network.
        """
        model = self.model()
        load_weights(model, Path(weights))
        return model.network.eval()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Create the fused optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=0.01, fused=True)

    def schedule(self, optimizer: torch.optim.Optimizer, num_updates: int) -> LRScheduler:
        """Increase the learning rate linearly, then decay it along a half cosine."""
        return warmup_cosine(optimizer, num_updates, warmup_frac=0.1)

    def deterministic_transform(self, sample: tuple[str, int]) -> tuple[torch.Tensor, int]:
        """Compute the features of a file."""
        return log_mel_of_file(Path(sample[0]), self.settings, cache=self.cache), sample[1]

    def random_transform(self, sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
        """Start at a random frame."""
        features, speaker = sample
        most = max(1, len(features) - self.num_frames + 1)
        return features[int(torch.randint(most, (1,))) :], speaker

    def collate(self, samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Cut samples to equal length, and repeat those that are shorter."""
        frames = torch.arange(self.num_frames)
        features = torch.stack([features[frames % len(features)] for features, _ in samples])
        return features, torch.tensor([speaker for _, speaker in samples])

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Compute the softmax loss of cosines with an additive margin (Wang et al., IEEE SPL 2018)."""
        features, speakers = batch
        cosines = model(features)[1]
        margin = _MARGIN * functional.one_hot(speakers, cosines.shape[1])
        return functional.cross_entropy(_SCALE * (cosines - margin), speakers)

    def metric(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Mapping[str, Gathered]:
        """Gather embeddings and speakers."""
        embeddings = model(batch[0])[0].float().cpu().numpy()
        return {"voices": Gathered(list(zip(embeddings, batch[1].tolist(), strict=True)))}

    def whole_metric(self, name: str, items: list[Any]) -> Mapping[str, float]:
        """Return the equal error rate."""
        if name != "voices":
            return super().whole_metric(name, items)
        embeddings, speakers = zip(*items, strict=True)
        return {"equal_error_rate": equal_error_rate(np.stack(embeddings), speakers)}


def equal_error_rate(embeddings: npt.NDArray[Any], speakers: Sequence[Any]) -> float:
    """Return the error of verification at the threshold where both errors are equal: 0 is perfect, and 0.5 is chance.

    Each pair of recordings is accepted if its cosine reaches the threshold.

    Args:
        embeddings: `[recordings, size]`.
        speakers: The speaker of each recording.

    Raises:
        DataError: No two recordings are of one speaker, all are, or an embedding is not finite.
    """
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    upper = np.triu_indices(len(unit), 1)
    cosines = (unit @ unit.T)[upper]
    same = (np.asarray(speakers)[:, None] == np.asarray(speakers))[upper]
    if same.all() or not same.any() or not np.isfinite(cosines).all():
        raise DataError("an equal error rate needs finite embeddings of at least 2 speakers, and 2 recordings of one.")
    order = np.argsort(-cosines)
    rejected, accepted = 1 - np.cumsum(same[order]) / same.sum(), np.cumsum(~same[order]) / (~same).sum()
    best = np.argmin(np.abs(rejected - accepted))
    return float((rejected[best] + accepted[best]) / 2)


def load_embedder(path: str | os.PathLike[str]) -> Embedder:
    """Load your own model from a TorchScript file. For other kinds of files, write a function that is an `Embedder`.

    Files of `torch.export` are refused, because PyTorch reads parts of them with pickle, which can run any code.

    Raises:
        DataError: The file is missing or of another kind.
        CorruptError: The file cannot be read.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"the model is missing: there is no file {file}.")
    if file.suffix not in {".pt", ".ts"}:
        raise DataError(f"{file} must be a TorchScript file that ends in .ts or .pt: other kinds may contain pickled code.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch recommends torch.export, whose files hold pickles
        try:
            model: Embedder = torch.jit.load(file, map_location="cpu").eval()
        except RuntimeError as error:
            raise CorruptError(f"{file} cannot be read as TorchScript: it is truncated or of another kind.") from error
    return model


def write_embeddings(
    store: str | os.PathLike[str],
    paths: Iterable[Path],
    embedder: Embedder,
    *,
    settings: MelSettings,
    cache: Cache | None = None,
) -> None:
    """Write a store with the columns `path` and `embedding`, float32 `[size]`, one row per file.

    Embeddings identify people: keep the store as carefully as the recordings.

    Args:
        store: Folder of the new store.
        paths: Files with one channel.
        embedder: A trained network, or your own model, on the CPU.
        settings: The features it was trained with.
        cache: Where features are kept; None keeps nothing.

    Raises:
        BrokenFileError: A file cannot be used. Nothing is written.
        DataError: The store exists already, or the model's output cannot be used.
    """
    size: int | None = None
    with StoreWriter(store) as writer:
        for path in paths:
            made = embedding_of(path, embedder, settings=settings, cache=cache, size=size)
            size = len(made)
            writer.write({"path": [str(path)], "embedding": made[None]})


def embedding_of(
    path: Path, embedder: Embedder, *, settings: MelSettings, cache: Cache | None = None, size: int | None = None
) -> npt.NDArray[np.float32]:
    """Return the embedding of a file, `[size]`. The other arguments are those of `write_embeddings`.

    Raises:
        BrokenFileError: The file cannot be used.
        DataError: The model's output cannot be used.
    """
    with torch.inference_mode():
        made: npt.NDArray[np.float32] = embedder(log_mel_of_file(path, settings, cache=cache)[None]).float().numpy()
    size = made.shape[-1] if size is None else size
    if made.shape != (1, size) or not np.isfinite(made).all():
        raise DataError(
            f"the model returned {list(made.shape)} for {path}, or numbers that are not finite: it must return finite "
            f"embeddings [batch, size], here [1, {size}]."
        )
    embedding: npt.NDArray[np.float32] = made[0]
    return embedding


def trained_embedder(folder: str | os.PathLike[str]) -> tuple[Embedder, MelSettings]:
    """Train a small network on recordings whose names or folders tell the speaker, and return it with its features.

    Raises:
        DataError: There are too few speakers or recordings.
    """
    job = type("Speakers", (SpeakerJob,), {"folder": str(folder)})()
    live = build(job, device=torch.device("cpu"))
    loop = Loop(live)
    loop.run(job.epochs * len(live.batches(0)))
    loop.close()
    model: Any = live.model
    return model.network.eval(), job.settings
