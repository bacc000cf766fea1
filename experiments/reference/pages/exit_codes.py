"""The exit codes, from `experiments.cli.output`."""

from __future__ import annotations

from experiments.cli.output import ExitCode
from experiments.reference.markdown import code, sections, table

TITLE = "Exit codes"
SUMMARY = "what the exit code of a command means"


def page() -> str:
    rows = [(code(exit_code.value), exit_code.meaning) for exit_code in ExitCode]
    return sections(
        "Every `isray` command ends with one of these codes.",
        table(("code", "meaning"), rows),
        "With `--json` a command prints one JSON document on standard output; progress, logs and error lines go to "
        "standard error.",
    )
