"""Errors are described by the line of the user's own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hasten.core.errors import HastenError
from hasten.core.user_code import MAX_CHARACTERS, error_words, is_user_file, traceback_words

HERE = Path(__file__).relative_to(Path.cwd()) if Path(__file__).is_relative_to(Path.cwd()) else Path(__file__)


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return json.loads("{")  # the deepest frame is in Python's json


def raised(function: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def test_the_deepest_line_of_the_user_is_named() -> None:
    words = error_words(raised(lambda: Broken()[0]))
    assert words.startswith("JSONDecodeError: Expecting")
    assert words.endswith(f" ({HERE}:{line_of('the deepest frame')})")


def test_an_error_without_a_line_of_the_user_names_none() -> None:
    words = error_words(ValueError("long " * 100))
    assert words == f"ValueError: {('long ' * 100)[:MAX_CHARACTERS]}..."
    assert error_words(HastenError("as it is (a:1)")) == "as it is (a:1)"


def test_an_error_of_a_loader_worker_names_the_line_of_the_worker() -> None:
    words = error_words(raised(lambda: next(iter(DataLoader(Broken(), num_workers=1)))))
    assert words.endswith(f" ({HERE}:{line_of('the deepest frame')})")
    assert "Traceback" not in words


def test_a_printed_traceback_is_read() -> None:
    text = (
        'before\nTraceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    f()\n'
        f'  File "{torch.__file__}", line 9, in f\n    g()\nRuntimeError: no memory\nafter\n'
    )
    assert traceback_words(text) == "RuntimeError: no memory (/home/me/train.py:7)"
    assert traceback_words("no traceback here") == ""


@pytest.mark.parametrize("file", [torch.__file__, json.__file__, "<frozen runpy>", error_words.__code__.co_filename])
def test_libraries_are_not_the_user(file: str) -> None:
    assert not is_user_file(file)
    assert is_user_file("/home/me/train.py")
