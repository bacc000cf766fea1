"""Java properties files, as `java.util.Properties.load` reads them, and with it every tool and server of Kafka's.

A logical line is `name=value`, `name: value` or `name value`; space around the name and before the value does not
count. A line whose first character is # or ! is a comment. An odd number of backslashes at the end of a line continues
it on the next one, whose leading space is dropped. Within names and values a backslash escapes the separators, begins
\\t, \\n, \\r, \\f and \\uXXXX (a unit of UTF-16), and is dropped before any other character. A name alone has an
empty value, and of a name that is given twice the last value counts.

Where the file is not UTF-8 it is read as ISO 8859-1, as Java reads bundles of properties. The space after a value,
which Java keeps and Kafka's configs drop, is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from experiments.support.errors import InputError, shown

_SPACE = " \t\f"
_NATURAL_LINES = re.compile(r"\r\n|\r|\n")
_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """The properties of a file, in the order of the file. InputError: no text, or as `parse_properties`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(str(path), "", error.strerror or error, "a readable text file") from error
    if b"\0" in content:
        raise InputError(str(path), "", "a zero byte", "a readable text file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("iso-8859-1")
    return parse_properties(text, str(path))


def parse_properties(text: str, source: str) -> dict[str, str]:
    """The properties of a text, which errors name `source`. InputError: a line without a name, or a wrong \\uXXXX."""
    properties = {}
    for number, line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        assert match is not None, line
        name, value = (_unescaped(part, source, number) for part in match.groups())
        if not name:
            raise InputError(source, f"line {number}", shown(line), "name=value")
        properties[name] = value.strip()
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each logical line with the number of its first line; neither comments nor empty ones."""
    begun, line = 0, ""
    for number, natural in enumerate(_NATURAL_LINES.split(text), 1):
        part = natural.lstrip(_SPACE)
        if not line:
            begun = number
            if part.startswith(("#", "!")):
                continue
        line += part
        if (len(part) - len(part.rstrip("\\"))) % 2:
            line = line[:-1]
        elif line:
            yield begun, line
            line = ""
    if line:
        yield begun, line


def _unescaped(text: str, source: str, number: int) -> str:
    def character(escape: re.Match[str]) -> str:
        code = escape[1]
        if code == "u":
            found = shown(text[escape.start() : escape.start() + 6])
            raise InputError(source, f"line {number}", found, "\\u and four hexadecimal digits")
        return chr(int(code[1:], 16)) if len(code) > 1 else _CONTROLS.get(code, code)

    units = _ESCAPE.sub(character, text)
    try:
        return units.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        allowed = "the two halves of a character beyond \\uFFFF together"
        raise InputError(source, f"line {number}", shown(text), allowed) from error
