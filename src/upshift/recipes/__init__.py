"""Training jobs that a person points at their own data: complete, and fast by Upshift's general parts."""
