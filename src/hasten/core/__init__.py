"""The core concepts of Hasten: job, live job, facts, plan, optimization, machine, statistics, errors."""
