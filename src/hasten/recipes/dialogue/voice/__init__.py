"""Voices: log-mel features, embeddings of speakers, and how alike, steady and genuine they are."""
