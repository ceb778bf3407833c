"""The words of Hasten: job, live job, facts, plan, optimization, machine, statistics, errors."""
