"""Complete training jobs that a person points at their own files, built from the general parts alone."""
