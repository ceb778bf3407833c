"""Training scripts whose bottleneck is known, what is wrong with each, and how well Upshift finds it out."""
