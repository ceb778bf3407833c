"""A small dialogue job for `hasten demo dialogue`: takes minutes, on generated conversations."""

from __future__ import annotations

from hasten.recipes.dialogue.job import DialogueJob
from hasten.recipes.dialogue.naive import NaiveDialogueJob
from hasten.recipes.dialogue.synth import DrawnTalks


class DrawnCounsel(DialogueJob):
    """Supervised training of a small model on generated conversations."""

    width = 96
    depth = 2
    batch_size = 2
    row_tokens = 1024
    drawn = DrawnTalks(count=700)


class NaiveDrawnCounsel(NaiveDialogueJob, DrawnCounsel):
    """The same job, written naively."""

    forms = (DrawnCounsel,)
