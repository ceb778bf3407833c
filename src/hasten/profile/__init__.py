"""Where the time of a training job goes, the largest possible gain per cost, and a diagnosis in words."""
