"""Parameters, memory and floating-point operations of a training before it exists."""
