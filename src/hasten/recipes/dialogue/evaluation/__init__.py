"""Gates for chat models: labelled sets, measures with intervals, and tasks for inspect-ai."""
