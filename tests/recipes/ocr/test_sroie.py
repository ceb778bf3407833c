"""The SROIE receipts, if they are next to the checkout: read without problems, with a third held out."""

from __future__ import annotations

import pytest

from benchmarks.public_data import NOT_THERE
from benchmarks.recipes.jobs.sroie import FOLDER, NaiveSroieJob, SroieJob
from hasten.recipes.findings import Findings
from hasten.recipes.ocr.regions import read_regions

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=NOT_THERE)


def test_receipts_are_read_without_a_fault() -> None:
    findings = Findings()
    items = read_regions(FOLDER / "images", FOLDER / "boxes", findings)
    assert len(items) == 120
    assert sum(len(item.regions) for item in items) > 5_400
    assert not findings.counts()["picture"], findings.words()


def test_both_forms_learn_from_the_same_receipts() -> None:
    plain, fast = NaiveSroieJob(), SroieJob()
    assert NaiveSroieJob.forms == (SroieJob,)
    assert (len(plain.valid_data()), len(fast.valid_data())) == (40, 40)  # type: ignore[arg-type]
    assert (len(plain.train_data()), len(fast.train_data())) == (80, 80)  # type: ignore[arg-type]
