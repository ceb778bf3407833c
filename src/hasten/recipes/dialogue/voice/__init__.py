"""Voices: log-mel features, embeddings of speakers, and similarity of speakers."""
