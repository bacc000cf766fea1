"""The exit codes of `isray`, each declared here with its meaning."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """An exit code; `meaning` is its line in docs/reference/exit-codes.md."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "The command did what it was asked to do, and found no failure."
    FAILURE = (
        1,
        "The run found a failure: a violated invariant, an unmet expectation, a mismatch, a surviving mutant; a trial "
        "or pipeline failed; a cluster is unhealthy or refused the request; or a question was answered with no.",
    )
    WRONG_INPUT = (
        2,
        "The input is wrong. One line on standard error gives the file or option, the field, what was found and what "
        "is allowed.",
    )
    INTERRUPTED = 130, "An interrupt (Ctrl-C) ended the command before it was done."
