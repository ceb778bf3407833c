"""Tuning: profile -> ceilings -> candidates -> trials -> verdict -> plan -> proof -> report.

session.py    the whole tuning, step by step
request.py    what is asked for; subject.py (scripts/subject.py) what is tuned: a job or a script
baseline.py   profile and ceilings of the plain job
search/       candidates, their trials and verdicts
proof/        the plan against the plain job, in fresh processes
record.py     evidence, plan and report, saved after every step
trials/       processes that train, and what is measured of them
batch/        the search for a microbatch size (`hasten batch`)
"""
