"""Where the public data sets are: in the folder named by HASTEN_DATA, else in `shared/data` next to the checkout."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.record import ROOT

PUBLIC_DATA = Path(os.environ.get("HASTEN_DATA") or ROOT.resolve().parent / "shared" / "data")
CONVERSATIONS = PUBLIC_DATA / "counsel" / "conversations.jsonl"
NOT_THERE = f"the public data sets are not in {PUBLIC_DATA}: set HASTEN_DATA to the folder that holds them"
