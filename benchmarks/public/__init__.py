"""Training scripts that others wrote, from public repositories: profiled and tuned unchanged.

scripts.toml   which scripts, and how each is started
cases.py       reads it
prepare.py     makes the data that a script expects beside it
run.py         takes a folder with clones of the repositories, and runs the command line on a copy of what each script needs
verdict.py     what of a profile and a tuning is kept, and how it is counted
page.py        docs/public.md
"""
