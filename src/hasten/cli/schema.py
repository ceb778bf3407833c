"""`hasten schema`: the JSON schema of the files that a tuning writes."""

from __future__ import annotations

import enum
import json
from typing import Annotated

import typer


class File(enum.StrEnum):
    """A file with a schema."""

    PLAN = "plan"
    EVIDENCE = "evidence"


def schema(file: Annotated[File, typer.Argument(help="Which file: hasten.toml or evidence.json.")]) -> None:
    """Print the JSON schema of a plan or of an evidence file, for editors and other programs."""
    if file is File.EVIDENCE:
        from hasten.report.evidence import Evidence
        from hasten.report.schema import json_schema

        found = json_schema(Evidence)
    else:
        from hasten.core.plan import plan_schema
        from hasten.optimizations import catalogue

        found = plan_schema(catalogue())
    typer.echo(json.dumps(found, indent=2))
