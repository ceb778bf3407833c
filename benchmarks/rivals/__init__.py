"""The example jobs trained by hand, by Lightning, by Accelerate and under Upshift's plan, side by side in one run."""
