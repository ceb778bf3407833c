"""Private data: replace identifiers in text, encrypt columns of a store with a key per person, and record who used them."""
