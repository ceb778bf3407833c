"""Trial processes: the parent's side, their inside, and what they measure."""
