"""Reading what a user typed and the files that a user named; whatever is wrong raises InputError."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

from experiments.cli.output import option
from experiments.support.errors import InputError, MissingInput
from experiments.support.fields import RELEASE, JsonShape, release_hint
from experiments.support.yaml_input import validated_json
from protocol.config import INT_MAX
from protocol.errors import StorageError
from protocol.features import RELEASED, Generation
from protocol.ids import is_uuid
from protocol.kafka_release import NEWEST, KafkaRelease, kafka_release
from protocol.messages.quorum import MAX_PORT, Endpoint

DIRECTORY_ID = "a directory id of 22 letters, digits, '_' and '-', such as isray storage random-uuid prints"
_SEEDS = re.compile(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?")
Shape = TypeVar("Shape", bound=JsonShape)


def read_text(path: Path) -> str:
    """The content of a UTF-8 text file, without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", getattr(error, "strerror", None) or error, "a readable text file") from error


def read_json(path: Path, shape: type[Shape], example: str) -> Shape:
    """The content of a JSON file; `example` is a file of that shape."""
    text = read_text(path)
    try:
        return validated_json(shape, text, str(path))
    except InputError as error:
        if error.found == "nothing":
            raise MissingInput(str(path), example, error.field) from error
        if not error.field:
            raise InputError(str(path), "", error.found, example) from error
        raise


def name_values(option: str, texts: Iterable[str] | None, prefix: str = "") -> dict[str, str]:
    """The values of an option that is given as NAME=VALUE, several times; names begin with `prefix`."""
    values = {}
    for text in texts or ():
        key, found, value = text.partition("=")
        if not found or not key.strip() or not key.startswith(prefix):
            raise InputError(option, "", text, f"{prefix}NAME=VALUE")
        values[key.strip()] = value.strip()
    return values


def whole_numbers(option: str, text: str, allowed: str, least: int = 0) -> list[int]:
    """The numbers of a list separated by commas, each from `least` to the largest 32-bit integer."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and least <= int(word) <= INT_MAX for word in words):
        raise InputError(option, "", repr(text), allowed)
    return [int(word) for word in words]


def directory_id(option: str, text: str, form: str = "") -> str:
    """A directory id of a controller, the uuid of its disk. InputError, in which `form` is allowed, for other text."""
    if not is_uuid(text):
        raise InputError(option, "", repr(text), form or DIRECTORY_ID)
    return text


def listener(option: str, text: str, form: str = f"NAME://HOST:PORT, a port from 1 to {MAX_PORT}") -> Endpoint:
    """Where a controller listens: the value of an option. InputError, in which `form` is allowed, for other text."""
    name, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal() and 0 < int(port) <= MAX_PORT):
        raise InputError(option, "", text, form)
    return Endpoint(name=name, host=host, port=int(port))


def generation_named(name: str, option: str = "--generation", allowed: str = "one of {}") -> Generation:
    """The value of an option; `allowed` is what InputError says with the names of all generations."""
    known = {generation.value: generation for generation in Generation}
    if name not in known:
        said = "; ".join(filter(None, (allowed.format(", ".join(known)), release_hint(name))))
        raise InputError(option, "", repr(name), said)
    return known[name]


def generations_named(text: str) -> list[Generation]:
    """The values of `--generations`, separated by commas. InputError for one that does not exist."""
    names = dict.fromkeys(name.strip() for name in text.split(","))
    return [generation_named(name, "--generations", "one or more of {}, separated by commas") for name in names]


KafkaReleaseOption = Annotated[
    str | None, option("R", "The release of Kafka whose rules hold in kip-497, kip-966-elr.")
]


def release_named(name: str, option: str = "--kafka-release", also: str = "") -> KafkaRelease:
    """The release that behaves as the one of the option. InputError where it is none; `also` is allowed besides."""
    try:
        return kafka_release(name)
    except ValueError as error:
        raise InputError(option, "", repr(name), also + RELEASE.form) from error


def release_of(name: str | None, generation: Generation, also: str = "") -> KafkaRelease:
    """The value of `--kafka-release`, the newest without one. InputError where no release has the generation, and as
    `release_named`.
    """
    if name is not None and generation not in RELEASED:
        allowed = f"no such option with --generation {generation.value}, which no release of Kafka has"
        raise InputError("--kafka-release", "", name, allowed)
    return NEWEST if name is None else release_named(name, also=also)


@contextmanager
def readable(source: str, allowed: str) -> Iterator[None]:
    """A StorageError within the block is wrong input: the directory or file of `source`."""
    try:
        yield
    except StorageError as error:
        raise InputError(source, "", error, allowed) from error


def one_of(actions: Mapping[str, bool]) -> str:
    """The one option that is given; InputError for none and for several."""
    given, allowed = [name for name, is_given in actions.items() if is_given], f"exactly one of {', '.join(actions)}"
    if not given:
        raise MissingInput("an option", allowed)
    if len(given) > 1:
        raise InputError("options", "", ", ".join(given), allowed)
    return given[0]


def only_with(owners: str, action: str, options: Mapping[str, object]) -> None:
    """InputError if one of the options is given and `action` is not among their `owners`, which `|` separates."""
    for name, value in options.items():
        if value not in (None, False, [], (), {}) and action not in owners.split("|"):
            raise InputError(name, "", f"{name} with {action}", f"{name} only with {owners.replace('|', ' or ')}")


def seed_range(text: str) -> range:
    """The seeds of `--seeds`."""
    match = _SEEDS.fullmatch(text)
    found = range(int(match[1]), int(match[2] or match[1]) + 1) if match is not None else range(0)
    if not found:
        raise InputError("--seeds", "", repr(text), "A..B with A <= B, both included, or one seed")
    return found
