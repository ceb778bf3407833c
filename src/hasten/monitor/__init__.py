"""Follow a run: samplers read the machine and the training, windows collect what they read, and sinks write the windows.

A `Window` covers a range of steps. The training thread only hands over its progress when a window ends; a thread of the
`Monitor` reads the samplers, and each sink has a thread of its own. See docs/guides/monitor.md for the format of windows.
"""
