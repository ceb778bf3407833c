"""Trial processes: the parent's side, the code inside them, and what they measure."""
