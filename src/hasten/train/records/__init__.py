"""What a run tells of itself, in files beside its weights, and how it is read again: by people, and by other programs."""
