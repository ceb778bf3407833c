"""Inject code into a script's process, and isolate profiling runs from the user's files."""
