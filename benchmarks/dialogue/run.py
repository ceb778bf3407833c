"""`python -m benchmarks dialogue`: what the dialogue recipe is made of, part by part, kept without `--again`.

packing       a training step on packed conversations against padding and against the packing of TRL
job           `hasten demo dialogue`, and updates of both forms with adapters and on preferences
identifiers   replacing identifiers in text against a loop of Python's `re`, and how many of those planted are found
scan          counting all patterns in conversations against loops of Python's `re`
reports       ten reports on growing conversations against scanning all again
log_mel       log-mel features against librosa, and an hour of sound in bounded memory
similarity    the exact search of similar embeddings against NumPy, faiss and usearch
streaming     memory of reading batches from stores against loading conversations with json
monitor       what counting mentions beside a training costs, against counting inline
"""

from __future__ import annotations

from benchmarks import in_parts

PARTS = ("packing", "job", "identifiers", "scan", "reports", "log_mel", "similarity", "streaming", "monitor")


def main(arguments: list[str]) -> None:
    """Run the command."""
    in_parts.main("dialogue", PARTS, __doc__, arguments)
