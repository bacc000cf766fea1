"""Input errors: the one way in which a command says that what it was given is wrong.

A user's mistake is answered with exit code 2 and one line that names the file, the field, what was found and what is
allowed. Everything that reads a user's file raises :class:`InputError`; the command line turns it into that line.
"""

from __future__ import annotations


class InputError(Exception):
    """Wrong input: `source` (file or option), `field` (dotted path, may be empty), `found`, `allowed`."""

    def __init__(self, source: str, field: str, found: object, allowed: str) -> None:
        self.source, self.field, self.found, self.allowed = source, field, found, allowed
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.source}: {self.field}" if self.field else self.source
        return " ".join(f"{where}: found {self.found}; allowed: {self.allowed}".split())


class MissingInput(InputError):
    """A required option, argument or field is not given: `source`, `field` (may be empty), `allowed`."""

    def __init__(self, source: str, allowed: str, field: str = "") -> None:
        super().__init__(source, field, None, allowed)

    def __str__(self) -> str:
        where = f"{self.source}: {self.field}" if self.field else self.source
        return " ".join(f"{where} is missing; allowed: {self.allowed}".split())


class NoClusterRuns(InputError):
    """A command needs a cluster of this user on this machine, and none runs."""

    def __init__(self) -> None:
        super().__init__("--name", "", "no running cluster", "isray up starts one")

    def __str__(self) -> str:
        return "no cluster runs here; start one with isray up"
