"""A mark and a fixture for tests of training speed. pytest loads this module in every run, so it imports almost nothing.

    @pytest.mark.training_speed("train.py", "--epochs", "1", against="main", budget_s=300)
    def test_training_is_not_slower():
        ...

The test fails if training is slower, and is skipped with the reason if that is undecided. The fixture `training_check` is a
function with the same arguments that returns the result, for your own assertions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hasten.check.result import CheckResult

MARK = "training_speed"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    words = f"{MARK}(target, *arguments, against=None, budget_s=600, floor=0.03): fail if training became slower (Hasten)"
    config.addinivalue_line("markers", words)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run the check of a marked test before its body."""
    if (mark := item.get_closest_marker(MARK)) is not None:
        result = check_training(item.config.rootpath, *mark.args, **mark.kwargs)
        item.add_report_section("call", "training speed", "\n".join([*result.details(), result.headline]))
        if result.status == 1:
            pytest.fail(result.headline, pytrace=False)
        if result.status != 0:
            pytest.skip(result.headline)
    return (yield)


@pytest.fixture
def training_check(request: pytest.FixtureRequest) -> Callable[..., CheckResult]:
    """Return a function that runs a check: `training_check("train.py", "--epochs", "1", against="main")`."""
    return lambda target, *arguments, **options: check_training(request.config.rootpath, target, *arguments, **options)


def check_training(
    folder: Path, target: str, *arguments: str, against: str | None = None, budget_s: float = 600.0, floor: float = 0.03,
    **options: Any,
) -> CheckResult:  # fmt: skip
    """Run a check.

    `options` are further fields of `Options`.

    Raises:
        HastenError: It could not be measured.
    """
    from hasten.check.check import CheckRequest, run_check  # noqa: PLC0415 - imports torch
    from hasten.check.paired import Options  # noqa: PLC0415 - as above
    from hasten.check.subject import Subject  # noqa: PLC0415 - as above

    command = (target, *arguments) if target.endswith(".py") else ()
    return run_check(
        CheckRequest(
            subject=Subject(target=target, command=command, folder=folder),
            against=against,
            options=Options(budget_s=budget_s, floor_frac=floor, **options),
        )
    )
