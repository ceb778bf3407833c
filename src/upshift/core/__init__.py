"""The words of Upshift: job, live job, facts, plan, optimization, machine, statistics, errors."""
