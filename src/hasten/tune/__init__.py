"""Tuning: profile -> ceilings -> candidates -> trials -> verdict -> plan -> proof -> report.

session.py    the whole tuning, step by step
request.py    what the user asks for; subject.py and scripts/subject.py: the job or script being tuned
baseline.py   profile and ceilings of the plain job
search/       candidates, their trials and verdicts
proof/        the plan against the plain job, in fresh processes
record.py     evidence, plan and report, saved after every step
trials/       trial processes and their measurements
batch/        the search for a microbatch size (`hasten batch`)
"""
