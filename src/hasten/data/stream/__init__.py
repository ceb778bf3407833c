"""Read batches of a store in an order that is a pure function of (seed, epoch, position)."""
