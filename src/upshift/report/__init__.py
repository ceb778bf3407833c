"""Pages and plots: everything a person reads after a tuning, made from the evidence file and from nothing else."""

from __future__ import annotations

from upshift.report.evidence import load, save, validate
from upshift.report.html import write_html
from upshift.report.terminal import print_summary

__all__ = ["load", "print_summary", "save", "validate", "write_html"]
