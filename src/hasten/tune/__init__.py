"""Trials, comparisons, the numerics gate and the ladder: what turns a guess into a proof."""
