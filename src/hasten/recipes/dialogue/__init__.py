"""Counselling dialogues trained in stages: checked conversations, packed rows, preferences, bias monitoring and voice.

`DialogueJob` and `PreferenceJob` are the jobs to train; `NaiveDialogueJob` and `NaivePreferenceJob` are the same written in
the usual way, the baseline. Set your conversations in a subclass::

    from hasten.recipes.dialogue import DialogueJob
    from hasten.recipes.dialogue.prepare import prepare

    prepare("conversations.jsonl", "prepared")


    class Counsel(DialogueJob):
        prepared = "prepared"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.recipes.dialogue.job import DialogueJob
    from hasten.recipes.dialogue.naive import NaiveDialogueJob, NaivePreferenceJob
    from hasten.recipes.dialogue.preference import PreferenceJob

_HOMES = {
    "DialogueJob": "job",
    "NaiveDialogueJob": "naive",
    "NaivePreferenceJob": "naive",
    "PreferenceJob": "preference",
}
__all__ = ["DialogueJob", "NaiveDialogueJob", "NaivePreferenceJob", "PreferenceJob"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:  # torch is imported on first use of a job
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
