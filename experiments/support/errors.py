"""Input errors: the command line prints an `InputError` as one line and exits with code 2."""

from __future__ import annotations

import json

_SHOWN_LENGTH = 200


def shown(value: object, as_json: bool = False) -> str:
    """A value of a file as errors show it: text in quotes, cut where it is long. `as_json`: as JSON has it."""
    text = json.dumps(value, ensure_ascii=False, default=str) if as_json else repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."


class InputError(Exception):
    """Wrong input: `source` (file or option), `field` (dotted path, may be empty), `found`, `allowed`. Text in `found`
    is words or the text of an option; a value of a file goes through `shown`.
    """

    def __init__(self, source: str, field: str, found: object, allowed: str) -> None:
        self.source, self.field, self.found, self.allowed = source, field, found, allowed
        super().__init__(str(self))

    def __str__(self) -> str:
        return self.line(f": found {self.found}")

    def line(self, finding: str) -> str:
        """The source and the field, what is wrong there, and what is allowed, on one line."""
        where = f"{self.source}: {self.field}" if self.field else self.source
        return " ".join(f"{where}{finding}; allowed: {self.allowed}".split())


class WrongField(ValueError):
    """A validator's finding about a field of its model: `field` (empty: the model itself), `found` as a line shows it,
    `allowed`. `yaml_input.refused_by` makes an InputError of it.
    """

    def __init__(self, field: str, found: object, allowed: str) -> None:
        super().__init__(f"{field} {found}: allowed is {allowed}")
        self.field, self.found, self.allowed = field, found, allowed


class MissingInput(InputError):
    """A required option, argument or field is not given: `source`, `field` (may be empty), `allowed`."""

    def __init__(self, source: str, allowed: str, field: str = "") -> None:
        super().__init__(source, field, None, allowed)

    def __str__(self) -> str:
        return self.line(" is missing")


class NoClusterRuns(InputError):
    """A command needs a cluster of this user on this machine, and none runs."""

    def __init__(self) -> None:
        super().__init__("--name", "", "no running cluster", "isray up starts one")

    def __str__(self) -> str:
        return "no cluster runs here; start one with isray up"
