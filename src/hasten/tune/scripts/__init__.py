"""Tune an unmodified script. Each trial is a run of the script itself in its own process, paused between steps.

service.py    runs inside the script and takes commands between two of its steps
commands.py   the commands
profiling.py  the command that profiles: where the time goes
processes.py  runs outside: pairs of fresh processes that take turns
subject.py    a script as the subject of a tuning
"""
