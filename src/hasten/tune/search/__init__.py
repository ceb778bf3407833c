"""The climb: one candidate at a time, screened and judged, and what is written of it."""
