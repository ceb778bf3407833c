"""Where the time of a training job goes, what each cost is worth at most, and what holds it back, in words."""
