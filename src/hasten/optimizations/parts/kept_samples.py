"""Keep whole samples from within a script: the source of a dataset that wraps the script's own.

A tuning found that the samples repeat, but the script may later change what they depend on. So one read in seventeen is
compared with a fresh sample, and the first difference ends the keeping: a change of all samples is noticed within seventeen
reads. Workers read as before, because each would keep samples of its own, and most end with the epoch.
"""

from __future__ import annotations

from hasten.core.source_edits import NothingToWriteError, SourceEdits, UnwritableError

WRAPPER = "_KeptSamples"
_SOURCE = """\
class _KeptSamples({torch.utils.data.Dataset}):  # in memory; one read in 17 is compared with a fresh sample
    def __init__(self, dataset):
        self.dataset, self.kept, self.reads = dataset, dict(), 0

    def __len__(self):
        return len(self.dataset)

    def __getattr__(self, name):
        if name in ("dataset", "kept", "reads") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index):
        self.reads += 1
        if self.kept is None or not isinstance(index, {numbers.Integral}) or {torch.utils.data.get_worker_info}():
            return self.dataset[index]
        if index in self.kept and self.reads % 17:
            return self.kept[index]
        sample = self.dataset[index]
        if index not in self.kept:
            KEEP
        elif not _same_sample(sample, self.kept[index]):
            self.kept = None
            {warnings.warn}("sample " + str(index) + " has changed or cannot be compared, so samples are read again")
        return sample


def _same_sample(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_sample(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same_sample, a, b))
    try:
        if hasattr(a, "dtype"):
            return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
        return bool(a == b)
    except Exception:  # they cannot be compared
        return False
"""


def _lines(max_samples: int) -> list[str]:
    room = f"if len(self.kept) < {max_samples}:\n                " if max_samples else ""
    return _SOURCE.replace("KEEP", f"{room}self.kept[index] = sample").splitlines()


def lines_by_hand(max_samples: int) -> tuple[str, ...]:
    """Return the lines to write by hand, with full names; `max_samples` as in `write_kept_samples`."""
    lines = [line.replace("{", "").replace("}", "") for line in _lines(max_samples)]
    use = f"train_dataset = {WRAPPER}(train_dataset)  # before its loader is created"
    return ("import numbers, warnings", "", *lines, "", "", use)


def write_kept_samples(script: SourceEdits, max_samples: int) -> str:
    """Wrap the dataset of the training loader so that it keeps whole samples. Returns the change and its place.

    Args:
        script: The script.
        max_samples: Largest number of samples to keep; 0 keeps all.

    Raises:
        UnwritableError: The loader has workers, or its dataset is not among its arguments.
    """
    loader = script.loader()
    dataset, workers = loader.given.get("dataset", ""), loader.given.get("num_workers", "0")
    if not dataset:
        raise UnwritableError(f"the dataset is not among the arguments of the loader ({loader.place})")
    if dataset.startswith(f"{WRAPPER}("):
        raise NothingToWriteError(f"the loader already keeps samples ({loader.place})")
    if workers != "0":
        raise UnwritableError(f"the loader has workers ({loader.place}), and each would keep samples of its own")
    loader.set({"dataset": f"{WRAPPER}({dataset})"})
    return script.at_the_start(*_lines(max_samples), said=f"the samples of the loader at {loader.place} are kept by a class")
