"""Reports of a tuning for users: pages, plots and the summary in the terminal, made only from the evidence file."""

from __future__ import annotations

from hasten.report.evidence import Evidence, load, parse, save, validate
from hasten.report.html import write_html
from hasten.report.terminal import print_summary

__all__ = ["Evidence", "load", "parse", "print_summary", "save", "validate", "write_html"]
