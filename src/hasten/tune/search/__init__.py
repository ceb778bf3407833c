"""The search: screen one candidate at a time in turns with the current plan, judge it, and record the result.

search.py     runs the strategies, records their results, adopts plans
state.py      the input and the state of a search, and the results that strategies return
ranking.py    which techniques are worth a trial now
by_update.py, retries.py, by_epoch.py, by_target.py, prune.py   the strategies
screening.py, event_screening.py   two resident processes that take turns
job_processes.py (scripts/processes.py)   how they are started and brought to the first counted update
confirm.py    confirms small gains in fresh processes
verdict.py    what a measurement means for a candidate
candidate.py  the record of a candidate
"""
