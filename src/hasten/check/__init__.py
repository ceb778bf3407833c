"""Regression checks: has a change made training slower?

repository.py   the two commits as folders: worktrees of git, removed at the end
subject.py      the job or script in each folder: where its processes run, and whether they load the right code
paired.py       both commits in paired, interleaved trials; a slower verdict must recur in fresh worktrees
stored.py       the working folder against stored samples of this machine
result.py       what a check found: verdict, phases, memory, quality, environment
check.py        a whole check, as the command line, the pytest plugin and benchmarks call it
history.py      one JSON line a commit and machine; change points and creep in them
trend.py        the history as an offline page
ci.py           JUnit XML, annotations of GitHub, Markdown
pytest_plugin.py  a mark and a fixture
"""
