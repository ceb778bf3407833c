"""What takes long is said while a command listens, and only then."""

from __future__ import annotations

import logging
from pathlib import Path
from queue import Queue
from time import sleep

import pytest

from hasten.cli import say
from hasten.core.doing import doing, doing_shown
from hasten.recipes.detection.job import DetectionJob
from tests.recipes.detection.shapes import write_pictures


def test_it_is_shown_within_the_block_only(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    doing("before")
    with doing_shown(said.append):
        doing("100 % of it")
    doing("after")
    assert said == ["100 % of it"]
    assert not caplog.records
    assert logging.getLogger("hasten.doing").level == logging.NOTSET


def test_loading_is_said_only_if_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    said: Queue[str] = Queue()
    monkeypatch.setattr(say, "say", lambda words, **_: said.put(words.plain))
    with say.loading_shown("fast.py:J"):
        pass
    monkeypatch.setattr(say, "LOADING_S", 0.0)
    with say.loading_shown("hidden.py:J", is_shown=False):
        pass
    token = say.voice.set(say.Voice(level=-1))
    with say.loading_shown("quiet.py:J"):
        sleep(0.1)
    say.voice.reset(token)
    with say.loading_shown("slow.py:J"):
        assert said.get(timeout=10).endswith(" s  loading slow.py:J")  # as a step, not as an error
    assert said.empty()


def test_recipes_say_that_they_read_labels(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, 4)

    class Mine(DetectionJob):
        images = str(folder)

    said: list[str] = []
    with doing_shown(said.append):
        Mine().train_data()
    assert said == [f"reading the images in {folder} and their labels"]
