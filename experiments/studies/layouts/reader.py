"""Reads a layout from a file, whatever wrote it, and the racks of brokers.

A layout is the output of `kafka-topics.sh --describe` (`describe.py`), a reassignment in JSON as
`kafka-reassign-partitions.sh` takes and prints it (also its output with `Current partition replica assignment` and
`Proposed partition reassignment configuration`, of which the proposal counts), or what `isray cluster import` writes.

Racks are lines `broker,rack` with or without that header, a mapping `broker: rack` or `rack: [broker, ...]`, or the
output of `kafka-broker-api-versions.sh`, which has `(id: 1 rack: a`.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from experiments.studies.layouts.describe import describes, parse_describe
from experiments.studies.layouts.layout import Described, Layout, TopicLayout, layout_of
from experiments.support.errors import InputError, shown
from experiments.support.fields import StrictModel
from experiments.support.reassignment import Reassignment, assignment_of
from experiments.support.yaml_input import parse_yaml_mapping, read_text, validated
from protocol.ids import NO_LEADER

Id = Annotated[int, Field(ge=0)]
IdList = Annotated[tuple[Id, ...], Field(strict=False)]
Ids = Annotated[tuple[Id, ...], Field(strict=False, min_length=1)]
FORM = "kafka-topics.sh --describe, a reassignment in JSON, or a file of isray cluster import"
_PROPOSED = "Proposed partition reassignment configuration"
_BROKER_LINE = re.compile(r"\(id: (\d+) rack: (.+?)(?: isFenced: \w+)?\)")
_RACK_FORM = (
    "broker,rack lines, a mapping broker: rack or rack: [broker, ...], or the output of kafka-broker-api-versions.sh"
)


class ImportedPartition(StrictModel):
    """One partition of an imported cluster."""

    replicas: Ids
    leader: Annotated[int, Field(ge=NO_LEADER)]
    isr: IdList
    elr: IdList = ()
    last_known_elr: IdList = ()
    adding: IdList = ()
    removing: IdList = ()


class ImportedTopic(StrictModel):
    """A topic of an imported cluster; the configs are those in force, the cluster's default or its own."""

    min_insync_replicas: Annotated[int | None, Field(ge=1)] = None
    unclean_leader_election: bool | None = None
    partitions: Annotated[list[ImportedPartition], Field(min_length=1)]


class ImportedBroker(StrictModel):
    """A broker of an imported cluster; `rack` is null where it has none or was down."""

    id: Id
    rack: Annotated[str | None, Field(min_length=1)] = None


class ImportedCluster(StrictModel):
    """What `isray cluster import` writes."""

    isray_layout: Literal[1]
    cluster_id: str | None = None
    brokers: Annotated[list[ImportedBroker], Field(min_length=1)]
    topics: dict[str, ImportedTopic]


def read_layout(path: Path, racks: Mapping[int, str] | None = None) -> Layout:
    """The layout in a file. `racks` are those of brokers, from elsewhere: they win over those of the file. InputError,
    with file, line or field, for any other file, for one that is cut off, and for racks of some brokers only.
    """
    return layout_in(read_text(path, "the layout of a cluster", FORM), str(path), racks)


def layout_in(text: str, source: str, racks: Mapping[int, str] | None = None) -> Layout:
    """The layout in the text of a file, which `source` names in errors; `racks` as in `read_layout`."""
    if describes(text):
        return layout_of(parse_describe(text, source))
    if _PROPOSED in text or text.lstrip().startswith("{"):
        raw = _json(text, source)
        if "isray_layout" not in raw:
            return layout_of(_moved(raw, source))
        return _imported(raw, source, racks or {})
    if "isray_layout" not in text:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        raise InputError(source, "line 1", shown(first) if first else "no line", FORM)
    return _imported(parse_yaml_mapping(text, source, FORM), source, racks or {})


def _json(text: str, source: str) -> dict[str, object]:
    before, proposed, body = text.rpartition(_PROPOSED)
    try:
        found = json.loads(body)
    except json.JSONDecodeError as error:
        line = error.lineno + before.count("\n") if proposed else error.lineno
        raise InputError(
            source, f"line {line}", f"text that is not JSON ({error.msg})", f"all of it: {FORM}"
        ) from error
    if not isinstance(found, dict):
        raise InputError(source, "", shown(found), FORM)
    return found


def _moved(raw: dict[str, object], source: str) -> list[TopicLayout]:
    """The topics of a reassignment, each with its partitions from 0 on."""
    topics: dict[str, dict[int, tuple[int, ...]]] = {}
    for key, replicas in assignment_of(validated(Reassignment, raw, source, as_json=True), source).items():
        topics.setdefault(key.topic, {})[key.partition] = replicas
    for name, known in topics.items():
        missing = next((index for index in range(max(known) + 1) if index not in known), None)
        if missing is not None:
            found = f"partition {max(known)} of {name!r} and none {missing}"
            raise InputError(source, "partitions", found, "all partitions of a topic, from 0 on")
    return [TopicLayout(name, tuple(known[index] for index in range(len(known)))) for name, known in topics.items()]


def _imported(raw: Mapping[str, object], source: str, given: Mapping[int, str]) -> Layout:
    model = validated(ImportedCluster, raw, source)
    racks = {broker.id: broker.rack for broker in model.brokers if broker.rack is not None} | dict(given)
    ids = _distinct([broker.id for broker in model.brokers], source, "brokers")
    without = next((index for index, broker in enumerate(ids) if broker not in racks), None)
    if racks and without is not None:
        found, allowed = f"no rack of broker {ids[without]}", "a rack for each broker, or null for all of them"
        raise InputError(source, f"brokers[{without}]", found, allowed)
    topics = []
    for name, topic in model.topics.items():
        places = [f"topics.{name}.partitions[{index}]" for index in range(len(topic.partitions))]
        for place, item in zip(places, topic.partitions, strict=True):
            _distinct(item.replicas, source, f"{place}.replicas")
            _require_known(item, ids, source, place)
        states = tuple(
            Described(
                item.leader,
                *(tuple(ids) for ids in (item.isr, item.elr, item.last_known_elr, item.adding, item.removing)),
            )
            for item in topic.partitions
        )
        replicas = tuple(tuple(item.replicas) for item in topic.partitions)
        configs = topic.min_insync_replicas, topic.unclean_leader_election
        topics.append(TopicLayout(name, replicas, configs[0], states, configs[1]))
    return layout_of(topics, ids, racks)


def _require_known(item: ImportedPartition, brokers: tuple[int, ...], source: str, place: str) -> None:
    lists = {"isr": item.isr, "elr": item.elr, "last_known_elr": item.last_known_elr}
    lists |= {"adding": item.adding, "removing": item.removing}
    for name, ids, allowed in (
        ("replicas", item.replicas, list(brokers)),
        *((name, ids, item.replicas) for name, ids in lists.items()),
        ("leader", [] if item.leader == NO_LEADER else [item.leader], item.replicas),
    ):
        strange = [broker for broker in ids if broker not in allowed]
        if strange:
            known = f"a known broker: {', '.join(map(str, allowed))}"
            raise InputError(source, f"{place}.{name}", f"broker {strange[0]}", known)


def _distinct(replicas: Iterable[int], source: str, place: str) -> tuple[int, ...]:
    ids = list(replicas)
    if len(set(ids)) < len(ids):
        raise InputError(source, place, shown(ids), "each broker once")
    return tuple(ids)


def written(layout: Layout, cluster_id: str | None) -> dict[str, object]:
    """The layout as the file of `isray cluster import` has it; each topic is described."""
    topics: dict[str, object] = {}
    for topic in layout.topics:
        states = zip(topic.replicas, topic.described or (), strict=True)
        partitions = [{"replicas": replicas} | asdict(state) for replicas, state in states]
        configs = {name: getattr(topic, name) for name in ("min_insync_replicas", "unclean_leader_election")}
        topics[topic.name] = configs | {"partitions": partitions}
    brokers = [{"id": broker, "rack": layout.racks.get(broker)} for broker in layout.brokers]
    return {"isray_layout": 1, "cluster_id": cluster_id, "brokers": brokers, "topics": topics}


def read_racks(path: Path) -> dict[int, str]:
    """The rack of each broker in a file. InputError, with the line or field, for a broker that is named twice or has
    no rack, and for any other file.
    """
    return racks_in(read_text(path, "racks of brokers", _RACK_FORM), str(path))


def racks_in(text: str, source: str) -> dict[int, str]:
    """The rack of each broker in the text of a file, which `source` names in errors."""
    if found := _BROKER_LINE.findall(text):
        return _unique([(int(broker), "" if rack == "null" else rack, "") for broker, rack in found], source)
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if ":" in first or first.lstrip().startswith("{"):
        return racks_of(parse_yaml_mapping(text, source, _RACK_FORM), source)
    rows = []
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and cells == ["broker", "rack"]):
            continue
        if len(cells) != 2:
            raise InputError(source, f"line {number}", f"{len(cells)} values", "two: broker,rack")
        rows.append((_broker(cells[0], source, f"line {number}"), cells[1], f"line {number}"))
    return _unique(rows, source)


def racks_of(mapping: Mapping[Any, Any], source: str, place: str = "") -> dict[int, str]:
    """The rack of each broker in a mapping: the rack of a broker, or the brokers of a rack. `place`: where it stands in
    `source`."""
    rows = []
    for key, value in mapping.items():
        where = f"{place}.{key}" if place else str(key)
        if isinstance(value, list):
            rows += [(_broker(broker, source, where), str(key), where) for broker in value]
        else:
            rows.append((_broker(key, source, where), "" if value is None else str(value), where))
    return _unique(rows, source)


def _unique(rows: list[tuple[int, str, str]], source: str) -> dict[int, str]:
    racks: dict[int, str] = {}
    for broker, rack, place in rows:
        if not rack:
            raise InputError(source, place, f"no rack of broker {broker}", "a rack for each broker")
        if broker in racks:
            raise InputError(source, place, f"broker {broker} twice", "each broker once")
        racks[broker] = rack
    if not racks:
        raise InputError(source, "", "no broker", _RACK_FORM)
    return racks


def _broker(value: object, source: str, place: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise InputError(source, place, shown(value), "the id of a broker, a whole number from 0")
    return int(text)
