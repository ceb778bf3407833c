"""Say the result of a check to continuous integration: JUnit XML, annotations of GitHub, and Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from hasten.check.result import CheckResult, change_words
from hasten.core.stats import Verdict
from hasten.report.words import ms_words

LEVELS = {Verdict.SLOWER: "error", Verdict.UNDECIDED: "warning", Verdict.SAME: "notice", Verdict.FASTER: "notice"}
SIGNS = {Verdict.SLOWER: "❌", Verdict.UNDECIDED: "❔", Verdict.SAME: "✅", Verdict.FASTER: "✅"}


def junit(result: CheckResult) -> str:
    """Return the result as JUnit XML: one test, failed if slower and skipped if undecided."""
    failed, skipped = result.verdict is Verdict.SLOWER, result.verdict is Verdict.UNDECIDED
    counts = {"tests": "1", "failures": str(int(failed)), "errors": "0", "skipped": str(int(skipped))}
    seconds = f"{result.seconds:.1f}"
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": "hasten check", "time": seconds, **counts})
    case = ET.SubElement(
        suite, "testcase", {"classname": "hasten.check", "name": _printable(result.target), "time": seconds}
    )
    lines = _printable("\n".join(result.details()))
    if failed or skipped:
        problem = ET.SubElement(case, "failure" if failed else "skipped", {"message": _printable(result.headline)})
        problem.text = lines
    ET.SubElement(case, "system-out").text = f"{_printable(result.headline)}\n{lines}"
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def workflow_commands(result: CheckResult, file: Path | None = None) -> list[str]:
    """Return annotations as GitHub's workflow commands: the verdict, and a warning for each other harm."""
    lines = [_command(LEVELS[result.verdict], f"Training speed: {result.verdict}", result.headline, file)]
    judged = ((result.memory, "more"), (result.quality, "worse"), (result.anchor, Verdict.SLOWER))
    harms = [part.words for part, harm in judged if part is not None and part.verdict == harm]
    return lines + [_command("warning", "Training check", words, file) for words in harms]


def markdown(result: CheckResult) -> str:
    """Return the result as Markdown, as in the summary of a job."""
    title = f"### {SIGNS[result.verdict]} Training speed: {result.verdict}"
    change = change_words(result.interval) if result.interval else "too little was measured"
    rows = [
        ("target", f"`{_cell(result.target)}`"),
        ("change", change),
        ("why", result.why),
        *result.rows(),
        ("versions", f"{result.candidate.name} against {result.base.name}"),
        ("machine", result.machine.get("summary", "")),
    ]
    lines = [title, "", "| | |", "|---|---|", *(f"| {name} | {_cell(words)} |" for name, words in rows), ""]
    if result.phases is not None and result.verdict in (Verdict.FASTER, Verdict.SLOWER):
        old, new = result.phases.base_ms, result.phases.candidate_ms
        names = [name for name in old if max(old[name], new.get(name, 0.0)) > 0.0]
        lines += ["| phase | before | after |", "|---|---:|---:|"]
        lines += [f"| {name} | {ms_words(old[name])} | {ms_words(new.get(name, 0.0))} |" for name in names] + [""]
    return "\n".join(lines)


def report_to_github(result: CheckResult, file: Path | None, environ: Mapping[str, str]) -> list[str]:
    """Add the summary to the job's page, and return the annotations to print. Empty outside of GitHub Actions."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return []
    if path := environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as summary:
            summary.write(markdown(result) + "\n")
    return workflow_commands(result, file)


def _command(level: str, title: str, words: str, file: Path | None) -> str:
    """Return a workflow command. Characters that would end it are escaped as GitHub's toolkit does."""
    message = words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    properties = {"file": str(file), "title": title} if file else {"title": title}
    given = ",".join(
        f"{name}={value.replace('%', '%25').replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items()
    )
    return f"::{level} {given}::{message}"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _printable(words: str) -> str:
    """Return text without the control characters that XML cannot hold."""
    return "".join(sign for sign in words if sign >= " " or sign in "\n\t")
