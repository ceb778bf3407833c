"""What gets into a script's process, and keeps a profiling run off the user's files."""
