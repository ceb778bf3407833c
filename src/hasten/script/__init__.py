"""Watch an unmodified training script, and run it under a plan: in a process of its own, without changing its source.

attach.py        `hasten.attach()`: watch a `with` block from inside, and train it under a plan
steps.py         `hasten.step()`: a loop marks the ends of its steps itself
entry/           start the script, get into its process, keep a profiling run away from the user's files
watch/           the clock: seams on PyTorch, phases of each step, lines of code, the profile
plan/            apply a plan at the seams of a running script
data/            the training loader: caches, worker processes, trimmed batches, and what guards them
output/          checkpoints written in the background
patch/           write a plan into the script's source as a diff
patches.py       wrap attributes of modules and classes, and restore them
source_lines.py  files and lines of the user's code
"""
