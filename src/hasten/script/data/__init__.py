"""The loader of a script: what it shows, and reading it in other ways with the same batches."""
