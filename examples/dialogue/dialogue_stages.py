"""The jobs of the six stages: each trains on `$STAGE` of the prepared conversations, from the weights of `$START`."""

from __future__ import annotations

import os

from hasten.recipes.dialogue import DialogueJob, PreferenceJob


class Stage(DialogueJob):
    """Supervised training on one stage."""

    prepared = os.environ.get("PREPARED")
    stages = (os.environ["STAGE"],) if "STAGE" in os.environ else None
    start = os.environ.get("START")
    row_tokens, width, depth, batch_size, passes = 512, 64, 2, 2, 2


class Prefer(PreferenceJob):
    """Training on preferences, the last stage."""

    prepared = os.environ.get("PREPARED")
    start = os.environ.get("START")
    row_tokens, width, depth, batch_size = 512, 64, 2, 2
