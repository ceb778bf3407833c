"""Public training scripts written by others: profiled and tuned without changes.

scripts.toml   the scripts, and how to start each
cases.py       reads it
prepare.py     creates the data that a script expects next to it
run.py         takes a folder of repository clones, and runs the command line on a copy of the files each script needs
verdict.py     what is recorded of a profile and a tuning, and how it is counted
page.py        docs/results/public.md
"""
