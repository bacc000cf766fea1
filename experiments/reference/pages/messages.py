"""The messages and metadata records, from the pydantic models in `protocol.messages`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import MISSING, fields
from enum import Enum, EnumType
from importlib import import_module
from inspect import get_annotations

from experiments.reference.markdown import code, first_paragraph, sections, table
from protocol import messages
from protocol.messages.base import Message, Request, Response
from protocol.messages.records import MetadataRecord

TITLE = "Messages"
SUMMARY = "every request, response, command and metadata record: fields, types, defaults, versions and source"

_TYPES = {
    "bool": "boolean",
    "str": "string",
    "ErrorCode": "int16",
    **{f"Int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
}
_OMITTED = frozenset({"correlation_id", "error"})
_KINDS = ((MetadataRecord, "record"), (Request, "request"), (Response, "response"))


def page() -> str:
    models = [model for model in Message.REGISTRY.values() if not model.__subclasses__()]
    return sections(
        "Messages travel between nodes; metadata records are the content of the metadata log. "
        "`protocol/messages/codec.py` encodes both. Names are Kafka's in snake_case, where Kafka has the message.",
        "A request has a `correlation_id` (int32), its response the same one and an `error` (int16, Kafka's codes). "
        "The tables omit both. A field with a version is encoded from that version of the message on; the rest are in "
        "every version. Items such as G10 are those of [requirements.md](../requirements.md).",
        *(_module(name, models) for name in sorted({model.__module__ for model in models})),
    )


def _module(name: str, models: list[type[Message]]) -> str:
    module = import_module(name)
    own = [model for model in models if model.__module__ == name]
    enums = [kind for kind in vars(module).values() if isinstance(kind, EnumType) and kind.__module__ == name]
    heading = f"## {name.removeprefix(f'{messages.__name__}.')}"
    return sections(heading, first_paragraph(module.__doc__), *map(_message, own), *map(_enum, enums))


def _message(model: type[Message]) -> str:
    kind = next((f"*{word}* " for base, word in _KINDS if issubclass(model, base)), "")
    types = {name: text for base in reversed(model.__mro__) for name, text in get_annotations(base).items()}
    omitted = _OMITTED if issubclass(model, Request | Response) else frozenset()
    rows = [
        (
            code(field.name),
            _type(types[field.name]),
            "" if field.default is MISSING else code(_default(field.default)),
            model.SINCE.get(field.name, ""),
        )
        for field in fields(model)
        if field.name not in omitted
    ]
    columns = ("field", "type", "default", "version") if model.SINCE else ("field", "type", "default")
    field_table = table(columns, (row[: len(columns)] for row in rows))
    return sections(f"### {model.__name__}", kind + first_paragraph(model.__doc__), field_table)


def _enum(kind: EnumType) -> str:
    members: Iterable[Enum] = kind.__members__.values()
    values = ", ".join(f"{member.value} {member.name}" for member in members)
    return sections(f"### {kind.__name__}", f"*enumeration* {first_paragraph(kind.__doc__)}", values)


def _type(annotation: str) -> str:
    """A Python annotation in words."""
    text = re.sub(r"tuple\[(.+), \.\.\.\]", r"array of \1", annotation).replace(" | ", " or ").replace("None", "null")
    return re.sub(r"\w+", lambda word: _TYPES.get(word[0], word[0]), text)


def _default(value: object) -> str:
    if isinstance(value, Enum):
        return value.name
    return json.dumps(value) if value is None or isinstance(value, bool | int | str) else "empty"
