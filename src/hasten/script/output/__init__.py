"""What a script prints, logs and saves, done in the background."""
