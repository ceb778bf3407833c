"""Alerts: rules in TOML, judged on windows, with states that do not flap.

`rules.toml` has the built-in rules, `judge.py` the ways to judge, `engine.py` the states, `deliver.py` where alerts go. The
same engine judges a live run and a recorded one.
"""
