"""The search: one candidate at a time, screened in turns with the plan as it is, judged, and recorded.

search.py     follows the strategies, records what they find out, adopts plans
state.py      what a search is given and knows, and the results that strategies return
ranking.py    which techniques are worth a trial now
by_update.py, retries.py, by_epoch.py, by_target.py, prune.py   the strategies
screening.py, event_screening.py   two resident processes that take turns
job_processes.py (scripts/processes.py)   how they are started and brought to the first counted update
confirm.py    small gains, in fresh processes
verdict.py    what a measurement means for a candidate
candidate.py  what is recorded of it
"""
