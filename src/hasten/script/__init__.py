"""Watch an unmodified training script and run it under a plan, in its own process and without changing its source.

attach.py        `hasten.attach()`: watch a `with` block from inside and train it under a plan
steps.py         `hasten.step()`: mark the end of a training step explicitly
entry/           start the script, inject code into its process, and isolate profiling runs from the user's files
watch/           timing: seams on PyTorch, phases of each step, source lines, the profile
plan/            apply a plan at the seams of a running script
data/            the training loader: caches, worker processes, trimmed batches, and their safety checks
output/          write checkpoints in the background
patch/           write a plan into the script's source as a diff
patches.py       wrap attributes of modules and classes, and restore them
source_lines.py  files and lines of the user's code
"""
