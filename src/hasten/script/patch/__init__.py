"""Write a plan into the user's own source, as a patch to review and apply.

suggest.py     process the plan, one optimization at a time, and create the diff
script.py      the view of the script that optimizations edit (`Optimization.write_patch`)
find.py        find the script's loops, loader and optimizer
model.py       find where its model is created
step.py        find where it computes the loss
flow.py        find the calls that may have created a value
project.py     resolve names across the script's files
source.py      one file for reading: its syntax tree and the scopes of its names
formatted.py   one file for writing: its libcst tree
edits.py       edit arguments, lines, blocks and imports
"""

from __future__ import annotations

from hasten.script.patch.suggest import Patch, suggest

__all__ = ["Patch", "suggest"]
