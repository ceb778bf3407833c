"""The example jobs trained by hand, with Lightning, with Accelerate and under Hasten's plan, side by side in one run."""
