"""What pipelines of stages cost, how well their time is predicted, and whether they survive kills."""
