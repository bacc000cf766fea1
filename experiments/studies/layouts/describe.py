"""Reads what `kafka-topics.sh --describe` prints, of Kafka 2.0 to 4.4 and of `isray topics --describe`.

A line of a topic is followed by a line for each of its partitions, in any order. The fields of a line are
`Name: value`, between tabs, which a copied text may have turned into spaces. Which fields there are depends on the
version: TopicId since 2.8, `Adding Replicas` and `Removing Replicas` while a reassignment is under way, Elr and
LastKnownElr since 4.0 (`N/A` where the cluster has none), LastKnownLeader of isray. Lines that Kafka's tools print
beside it (warnings of the logging) stand before the first topic, and are passed over there only.

A field that is not known means another version, whose meaning is not guessed. A topic with fewer partitions than its
PartitionCount means that the output is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from experiments.studies.layouts.layout import Brokers, Described, TopicLayout
from experiments.support.errors import InputError, shown
from protocol.ids import NO_LEADER

TOPIC_FIELDS = ("Topic", "TopicId", "PartitionCount", "ReplicationFactor", "MarkedForDeletion", "Configs")
PARTITION_FIELDS = (
    *("Topic", "Partition", "Leader", "Replicas", "Isr", "Offline", "Adding Replicas", "Removing Replicas"),
    *("Elr", "LastKnownElr", "LastKnownLeader", "MarkedForDeletion"),
)
REQUIRED = ("Topic", "Partition", "Leader", "Replicas", "Isr")
FORM = "the output of kafka-topics.sh --describe of Kafka 2.0 to 4.4"
_NAME = re.compile(r"(?:^|(?<=\s))((?:Adding |Removing )?[A-Z][A-Za-z]*):\s*")
_MIN_ISR = re.compile(r"(?:^|[,{\s])min\.insync\.replicas=([^,}\s]*)")
_UNCLEAN = re.compile(r"(?:^|[,{\s])unclean\.leader\.election\.enable=([^,}\s]*)")
_BEGINS = re.compile(r"\s*Topic:")


@dataclass(slots=True)
class _Topic:
    line: int
    count: int
    min_isr: int | None
    unclean: bool | None
    partitions: dict[int, tuple[Brokers, Described]] = field(default_factory=dict)


def describes(text: str) -> bool:
    """Whether any line of the text begins as those of the tool do."""
    return any(_BEGINS.match(line) for line in text.splitlines())


def parse_describe(text: str, source: str) -> list[TopicLayout]:
    """The topics in the output of the tool. InputError, which names `source` and the line: a field or value of another
    version, a partition twice or beyond the count, an ISR or a leader that is no replica, an output that is cut off.
    """
    topics: dict[str, _Topic] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or (not topics and not _BEGINS.match(line)):
            continue
        place = f"line {number}"
        fields = dict(_fields(line, source, place))
        if "PartitionCount" in fields:
            _add_topic(topics, fields, number, source)
        elif "Partition" in fields:
            _add_partition(topics, fields, source, place)
        else:
            raise InputError(source, place, shown(line.strip()), f"a line of {FORM}")
    whole = [_whole(name, topic, source) for name, topic in topics.items()]
    if not text.endswith("\n"):
        place = f"line {text.count(chr(10)) + 1}"
        raise InputError(
            source, place, "no line break at the end", "a last line that is whole: an output that is not cut off"
        )
    return whole


def _fields(line: str, source: str, place: str) -> Iterator[tuple[str, str]]:
    """The names and values of a line. What follows `Configs:` is one value, whatever is in it."""
    found = list(_NAME.finditer(line))
    is_topic = any(match[1] == "PartitionCount" for match in found)
    known = TOPIC_FIELDS if is_topic else PARTITION_FIELDS
    if not found or line[: found[0].start()].strip():
        raise InputError(source, place, shown(line.strip()), f"a line of {FORM}")
    for index, match in enumerate(found):
        if match[1] not in known:
            raise InputError(source, place, f"field {match[1]!r}", f"{', '.join(known)}: {FORM}")
        is_last = match[1] == "Configs" or index + 1 == len(found)
        yield match[1], line[match.end() : None if is_last else found[index + 1].start()].strip()
        if is_last:
            return


def _add_topic(topics: dict[str, _Topic], fields: Mapping[str, str], number: int, source: str) -> None:
    name, place = fields["Topic"], f"line {number}"
    if name in topics:
        allowed = f"each topic once; it stands on line {topics[name].line}, too"
        raise InputError(source, place, f"topic {name!r} twice", allowed)
    stated = _MIN_ISR.search(fields.get("Configs", ""))
    min_isr = None if stated is None else _number(stated[1], "min.insync.replicas", source, place, least=1)
    count = _number(fields["PartitionCount"], "PartitionCount", source, place, least=1)
    enabled = _UNCLEAN.search(fields.get("Configs", ""))
    if enabled is not None and enabled[1] not in ("true", "false"):
        raise InputError(source, place, f"unclean.leader.election.enable {shown(enabled[1])}", "true or false")
    topics[name] = _Topic(number, count, min_isr, None if enabled is None else enabled[1] == "true")


def _add_partition(topics: Mapping[str, _Topic], fields: Mapping[str, str], source: str, place: str) -> None:
    missing = [name for name in REQUIRED if name not in fields]
    if missing:
        raise InputError(source, place, f"no field {missing[0]}", f"{', '.join(REQUIRED)}: a line that is not cut off")
    topic = topics.get(fields["Topic"])
    if topic is None:
        found = f"a partition of {fields['Topic']!r} before its topic"
        raise InputError(source, place, found, "the line of the topic, with its PartitionCount, first")
    index = _number(fields["Partition"], "Partition", source, place)
    if index >= topic.count:
        raise InputError(source, place, f"partition {index}", f"0 to {topic.count - 1}, by PartitionCount")
    if index in topic.partitions:
        raise InputError(source, place, f"partition {index} of {fields['Topic']!r} twice", "each partition once")
    replicas = _brokers(fields["Replicas"], "Replicas", source, place)
    if not replicas:
        raise InputError(source, place, "no replicas", "one broker or more in Replicas")
    topic.partitions[index] = replicas, _state(fields, replicas, source, place)


def _state(fields: Mapping[str, str], replicas: Brokers, source: str, place: str) -> Described:
    """The state of a partition. Offline replicas need no place in it: they are replicas that are in no ISR."""
    names = ("Isr", "Elr", "LastKnownElr", "Adding Replicas", "Removing Replicas")
    found = {name: _brokers(fields.get(name, ""), name, source, place) for name in names}
    leader = NO_LEADER
    if fields["Leader"] not in ("none", "-1"):
        leader = _number(fields["Leader"], "Leader", source, place)
    for name, brokers in (*found.items(), ("Leader", () if leader == NO_LEADER else (leader,))):
        strange = [broker for broker in brokers if broker not in replicas]
        if strange:
            allowed = f"brokers of its Replicas, {','.join(map(str, replicas))}"
            raise InputError(source, place, f"broker {strange[0]} in {name}", allowed)
    return Described(leader, *found.values())


def _whole(name: str, topic: _Topic, source: str) -> TopicLayout:
    missing = [index for index in range(topic.count) if index not in topic.partitions]
    if missing:
        found = f"{topic.count - len(missing)} of {topic.count} partitions of {name!r}, without partition {missing[0]}"
        raise InputError(source, f"line {topic.line}", found, "all of them: an output that is not cut off")
    states = [topic.partitions[index] for index in range(topic.count)]
    replicas, described = zip(*states, strict=True)
    return TopicLayout(name, replicas, topic.min_isr, described, topic.unclean)


def _brokers(text: str, name: str, source: str, place: str) -> Brokers:
    """The broker ids of a list, which may be empty or `N/A`."""
    if text in ("", "N/A"):
        return ()
    found = tuple(_number(part.strip(), name, source, place) for part in text.split(","))
    if len(set(found)) < len(found):
        raise InputError(source, place, f"{name} {text}", "each broker once")
    return found


def _number(text: str, name: str, source: str, place: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10) or int(text) < least:
        raise InputError(source, place, f"{name} {shown(text)}", f"a whole number from {least}")
    return int(text)
