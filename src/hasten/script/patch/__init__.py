"""A plan written into the user's own source, as a patch to read and apply.

suggest.py     goes through the plan, technique by technique, and makes the diff
script.py      what a technique sees of the script while it writes itself into it (`Optimization.write_patch`)
find.py        where the script's loops, loader and optimizer are
model.py       where its model is made
step.py        where it computes the loss
flow.py        which calls may have made a value
project.py     what names mean, across the script's files
source.py      one file for reading: its tree, and which names are bound where
formatted.py   one file for writing: its tree of libcst
edits.py       arguments, lines, blocks and imports
"""

from __future__ import annotations

from hasten.script.patch.suggest import Patch, suggest

__all__ = ["Patch", "suggest"]
