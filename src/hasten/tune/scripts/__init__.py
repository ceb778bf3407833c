"""Tune an unmodified script: the trials are runs of the script itself, each in a process of its own, stopped between steps.

service.py    the inside: takes commands between two steps of the script
commands.py   what it can be told
profiling.py  one of them: where the time goes
processes.py  the outside: pairs of fresh processes that take turns
subject.py    a script as the subject of a tuning
"""
