"""Create graphs, patches, masks, spectrograms and small digits in the files that public scripts read. All are seeded."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.public.prepare import digits, png
from hasten.core.errors import MachineError

NUM_PAPERS, NUM_CITATIONS, NUM_TERMS, NUM_TOPICS = 2708, 5429, 1433, 7
"""As in Cora (Sen et al., 2008)."""
TERMS_OF_A_PAPER = 18
"""The mean in Cora."""
NUM_LABELLED, NUM_TESTED = 140, 1000
"""The split of Planetoid (Yang et al., 2016)."""
NUM_PATCHES, NUM_LARGE, PATCH_SIDE, LARGE_SIDE = 21_884, 5, 33, 255
"""As the preparation of SRCNN makes of its 91 images; five images of Set5."""
NUM_SCENES, SCENE_SIDES = 40, (160, 240)
"""Number of images with masks, and their height and width."""
NUM_SPEAKERS, NUM_UTTERANCES, NUM_MELS, SPEAKER_WIDTH = 20, 10, 80, 256
NUM_SMALL_DIGITS = {"train": 1000, "test": 500}
SMALL_SIDE = 16

Array = np.ndarray[Any, np.dtype[Any]]


def citations(folder: Path) -> None:
    """A random graph of the size of Cora, in its two text files."""
    terms, topics, links = _graph()
    (folder / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in links), encoding="ascii")
    with (folder / "cora.content").open("w", encoding="ascii") as file:
        for paper, (row, topic) in enumerate(zip(terms, topics, strict=True)):
            file.write("\t".join([str(paper), *row.astype(str), f"topic{topic}"]) + "\n")


def planetoid(folder: Path) -> None:
    """A random graph of the size of Cora, in the pickles of Planetoid."""
    try:
        from scipy.sparse import csr_matrix  # noqa: PLC0415 - needed for one script alone
    except ImportError as error:
        raise MachineError(
            "The files of Planetoid hold matrices of SciPy, which is not installed: pip install scipy."
        ) from error
    terms, topics, links = _graph()
    first_tested = NUM_PAPERS - NUM_TESTED
    one_hot = np.eye(NUM_TOPICS, dtype=np.int32)[topics]
    neighbours: defaultdict[int, list[int]] = defaultdict(list)
    for a, b in links.tolist():
        neighbours[a].append(b)
        neighbours[b].append(a)
    parts = {
        "x": csr_matrix(terms[:NUM_LABELLED].astype(np.float32)),
        "tx": csr_matrix(terms[first_tested:].astype(np.float32)),
        "allx": csr_matrix(terms[:first_tested].astype(np.float32)),
        "y": one_hot[:NUM_LABELLED],
        "ty": one_hot[first_tested:],
        "ally": one_hot[:first_tested],
        "graph": defaultdict(list, {paper: neighbours[paper] for paper in range(NUM_PAPERS)}),
    }
    for name, part in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    (folder / "ind.cora.test.index").write_text(
        "\n".join(map(str, range(first_tested, NUM_PAPERS))) + "\n", encoding="ascii"
    )


def super_resolution(folder: Path) -> None:
    """Random patches and images, blurred and sharp, in the two HDF5 files that SRCNN reads."""
    try:
        import h5py  # noqa: PLC0415 - needed for one script alone
    except ImportError as error:
        raise MachineError("The patches are kept in HDF5, but h5py is not installed: pip install h5py.") from error
    random = np.random.default_rng(0)
    with h5py.File(folder / "train.h5", "w") as file:
        sharp = random.integers(0, 256, (NUM_PATCHES, PATCH_SIDE, PATCH_SIDE)).astype(np.float32)
        file["lr"], file["hr"] = _blurred(sharp), sharp
    with h5py.File(folder / "eval.h5", "w") as file:
        low, high = file.create_group("lr"), file.create_group("hr")
        for index in range(NUM_LARGE):
            sharp = random.integers(0, 256, (1, LARGE_SIDE, LARGE_SIDE)).astype(np.float32)
            low[str(index)], high[str(index)] = _blurred(sharp)[0], sharp[0]


def scenes(folder: Path) -> None:
    """Random images of 240 x 160 pixels with a rectangle each, and a mask of it, as PNG."""
    random = np.random.default_rng(0)
    height, width = SCENE_SIDES
    for name in ("imgs", "masks"):
        (folder / name).mkdir(exist_ok=True)
    for number in range(NUM_SCENES):
        image = random.integers(0, 128, (height, width, 3), dtype=np.uint8)
        mask = np.zeros_like(image)
        top, left = random.integers(0, height // 2), random.integers(0, width // 2)
        mask[top : top + height // 2, left : left + width // 2] = 255
        (folder / "imgs" / f"{number}.png").write_bytes(png(image + mask // 2))
        (folder / "masks" / f"{number}_mask.png").write_bytes(png(mask))


def spectrograms(folder: Path) -> None:
    """Random spectrograms of 80 bands: ten utterances of 20 speakers, with a list of them and of the speakers' vectors."""
    random = np.random.default_rng(0)
    listed: list[list[Any]] = []
    for speaker in range(NUM_SPEAKERS):
        vector = random.standard_normal(SPEAKER_WIDTH).astype(np.float32)
        row: list[Any] = [f"p{speaker}", vector / np.linalg.norm(vector)]
        (folder / f"p{speaker}").mkdir()
        for utterance in range(NUM_UTTERANCES):
            name = f"p{speaker}/{utterance}.npy"
            np.save(folder / name, random.random((int(random.integers(100, 300)), NUM_MELS), dtype=np.float32))
            row.append(name)
        listed.append(row)
    (folder / "train.pkl").write_bytes(pickle.dumps(listed))


def small_digits(folder: Path) -> None:
    """The digits of scikit-learn at 16 x 16 pixels: 1,000 to train on and 500 to test, as pairs of tensors."""
    import torch  # noqa: PLC0415 - the only maker of tensors

    images, targets = digits()
    random = np.random.default_rng(0)
    for name, count in NUM_SMALL_DIGITS.items():
        chosen = random.integers(0, len(images), count)
        large = np.kron(images[chosen], np.ones((1, 2, 2))).reshape(count, 1, SMALL_SIDE, SMALL_SIDE)
        wanted = np.full((count, 10), -1.0, dtype=np.float32)
        wanted[np.arange(count), targets[chosen]] = 1.0
        pair = (torch.from_numpy((large / 8.0 - 1.0).astype(np.float32)), torch.from_numpy(wanted))
        torch.save(pair, folder / f"{name}1989.pt")


def _graph() -> tuple[Array, Array, Array]:
    """Return terms [paper, term], topics [paper], and links [link, 2]. Papers of a topic share terms and links."""
    random = np.random.default_rng(0)
    topics = random.integers(0, NUM_TOPICS, NUM_PAPERS)
    terms = np.zeros((NUM_PAPERS, NUM_TERMS), dtype=np.int8)
    share = NUM_TERMS // NUM_TOPICS
    for paper, topic in enumerate(topics):
        own = random.integers(topic * share, (topic + 1) * share, TERMS_OF_A_PAPER // 2)
        terms[paper, own] = 1
        terms[paper, random.integers(0, NUM_TERMS, TERMS_OF_A_PAPER // 2)] = 1
    from_paper = random.integers(0, NUM_PAPERS, NUM_CITATIONS)
    same = [np.flatnonzero(topics == topic) for topic in range(NUM_TOPICS)]
    to_paper = [random.choice(same[topics[paper]]) for paper in from_paper]
    return terms, topics, np.stack([from_paper, np.array(to_paper)], axis=1)


def _blurred(sharp: Array) -> Array:
    """Return the mean of each pixel and its neighbours above and to the left."""
    return (sharp + np.roll(sharp, 1, axis=-1) + np.roll(sharp, 1, axis=-2)) / 3.0
