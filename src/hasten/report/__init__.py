"""Pages and plots: everything a person reads after a tuning, made from the evidence file and from nothing else."""

from __future__ import annotations

from hasten.report.evidence import Evidence, load, parse, save, validate
from hasten.report.html import write_html
from hasten.report.terminal import print_summary

__all__ = ["Evidence", "load", "parse", "print_summary", "save", "validate", "write_html"]
