"""The text of a study: the user's file with its comments, as `study.yaml` keeps it.

`study.yaml` has the keys `study`, whose lines are those of the file, indented, `runs` and `cells`. Where an option of
the command replaces a field, ruamel.yaml changes that field and leaves the rest as it is.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from experiments.studies.design.ranges import protect, restore

_MARKERS = re.compile(r"^(---|\.\.\.|%)", re.MULTILINE)
_INDENT = "  "
_RECORD = "study:\n"


def with_fields(text: str, changes: Mapping[str, object]) -> str:
    """The text of a study file with these fields replaced; None removes a field. The text is known to be a mapping.

    Directives and marks of documents are left out, so that the text can be part of another document.
    """
    if not changes and not _MARKERS.search(text):
        return text
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 1_000_000
    document = editor.load(protect(text))
    for name, value in changes.items():
        if value is None:
            document.pop(name, None)
        else:
            document[name] = _in_blocks(value)
    editor.version = None
    stream = io.StringIO()
    editor.dump(document, stream)
    return str(restore(stream.getvalue()))


def _in_blocks(value: object) -> object:
    """The value with texts of several lines as literal blocks."""
    if isinstance(value, Mapping):
        return {name: _in_blocks(part) for name, part in value.items()}
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value


def text_of(fields: Mapping[str, object]) -> str:
    """The text of a study that has no file."""
    return yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True)


def record_text(study: str, runs: object, cells: Sequence[str]) -> str:
    """The text of `study.yaml`."""
    body = textwrap.indent(study.rstrip("\n"), _INDENT)
    return f"study:\n{body}\n" + text_of({"runs": runs, "cells": list(cells)})


def split_record(record: str) -> tuple[str, str]:
    """The text of the study in the text of `study.yaml`, as :func:`record_text` took it, and the text that follows."""
    body, _, rest = record.removeprefix(_RECORD).rpartition("\nruns:")
    return "".join(line.removeprefix(_INDENT) for line in f"{body}\n".splitlines(keepends=True)), f"runs:{rest}"


def study_text(text: str) -> str:
    """The text of the study in a file: the whole file, or the part of a `study.yaml`."""
    return split_record(text)[0] if text.startswith(_RECORD) and "\nruns:" in text else text
