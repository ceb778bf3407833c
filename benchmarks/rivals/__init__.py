"""The example jobs trained by hand, by Lightning, by Accelerate and under Hasten's plan, side by side in one run."""
