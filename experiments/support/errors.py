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
