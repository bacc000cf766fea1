"""A whole cluster as a study's parameter: its brokers with their racks, its topics, and where their replicas are.

The placement is read from a file or made by a rule (`experiments/studies/layouts`). A *class* is all partitions with
equal ordered replicas, min ISR and acks. To the protocol they are alike, and under the failures of a trial the same
happens to them; so a trial has one partition for each class, and what is counted of it counts for all of them. A
class may have partitions of several topics.

Whose value holds: that of the topic in the study; then the study's parameter of that name; then what the file of the
placement says of the topic; then the parameter's default. So a min ISR that is swept holds for all topics to which the
study does not give one. A parameter of the study that no topic takes is refused, as it would change nothing.

Within a trial brokers have the numbers 0 to N - 1, in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, NamedTuple

from pydantic import Field

from experiments.studies.design.mappings import mapping_or
from experiments.studies.layouts.layout import Layout, with_racks
from experiments.studies.layouts.reader import layout_in, racks_in, racks_of
from experiments.studies.layouts.rules import RULES, PlacedTopic, place
from experiments.support.errors import InputError
from experiments.support.fields import NOT_ON_THE_WIRE, TEXT, AsTuple, TopicName, WrittenModel, one_of
from protocol.errors import did_you_mean

ACKS = ("0", "1", "all")
TAKEN = ("partitions", "replication_factor", "min_insync_replicas", "acks")
"""The parameters of a study that are those of topics."""
OWN = ("brokers", "racks", "placement")
"""The parameters of a study that a cluster has itself."""
Text = Callable[[str], str]
"""The content of a file that the study names."""


class ClusterTopic(WrittenModel):
    """A topic. What it does not give comes from the study's parameters, or from the file of the placement."""

    name: TopicName
    partitions: int | None = Field(None, ge=1, le=100_000)
    replication_factor: int | None = Field(None, ge=1)
    min_insync_replicas: int | None = Field(None, ge=1)
    acks: Annotated[str | None, one_of(ACKS), TEXT, NOT_ON_THE_WIRE] = None


class ClusterFile(WrittenModel):
    """A cluster as a study file gives it. `racks`: the brokers of each rack, the rack of each broker, or a file."""

    brokers: int | None = Field(None, ge=1, le=999)
    racks: str | dict[str | int, str | int | list[int]] = Field(default_factory=dict)
    topics: Annotated[tuple[ClusterTopic, ...], AsTuple] = ()
    placement: str = Field("rack-aware", min_length=1)
    scatter_width: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0)


class PartitionClass(NamedTuple):
    """Partitions that are alike. `replicas`: numbers of brokers, the preferred leader first. `members`: for each topic
    with such partitions its number, how many it has, and the first of them."""

    replicas: tuple[int, ...]
    min_insync_replicas: int
    acks: str
    members: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        """How many partitions there are."""
        return sum(count for _, count, _ in self.members)


class Cluster(WrittenModel):
    """A cluster whose placement is known. `brokers`: their ids. `racks`: the name of each broker's rack; empty without
    racks. `topics`: their names. `placement`: the rule or file."""

    placement: str
    brokers: tuple[int, ...]
    racks: tuple[str, ...]
    topics: tuple[str, ...]
    classes: tuple[PartitionClass, ...]

    def words(self) -> str:
        found = [f"{len(self.brokers)} brokers", f"{self.partitions:,} partitions of {len(self.topics)} topics"]
        return ", ".join([*found, f"placement {self.placement}"])

    def __repr__(self) -> str:
        return f"Cluster({self.words()})"

    @property
    def partitions(self) -> int:
        """The number of partitions of all topics."""
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of partitions of each class."""
        return tuple(each.size for each in self.classes)

    @property
    def replication_factor(self) -> int:
        """The largest one of a topic."""
        return max(len(each.replicas) for each in self.classes)

    @property
    def replica_sets(self) -> int:
        """The number of different sets of brokers that hold a partition."""
        return len({frozenset(each.replicas) for each in self.classes})

    def brokers_by_rack(self) -> list[tuple[int, ...]]:
        """The numbers of the brokers of each rack; all in one without racks."""
        numbers, names = range(len(self.brokers)), sorted(set(self.racks))
        if not names:
            return [tuple(numbers)]
        return [tuple(number for number in numbers if self.racks[number] == name) for name in names]

    def name_of(self, index: int) -> str:
        """The partitions of the class with that index, in words: `orders-3 and 24 more`."""
        topic, _, first = self.classes[index].members[0]
        more = self.classes[index].size - 1
        return f"{self.topics[topic]}-{first}" + (f" and {more:,} more" if more else "")


CLUSTER = replace(
    mapping_or(
        "none",
        "{brokers: N, racks: {NAME: [BROKER, ...], ...} or FILE, topics: [{name, partitions, replication_factor, "
        f"min_insync_replicas, acks}}, ...], placement: FILE, {', '.join(RULES[:-1])} or {RULES[-1]}, "
        "scatter_width: N, seed: N}",
    ),
    write=lambda value: value.words() if isinstance(value, Cluster) else "none",
)


def resolve(file: ClusterFile, given: Mapping[str, object], defaults: Mapping[str, object], text: Text,
            source: str, place_of: Callable[[str], str]) -> Cluster:  # fmt: skip
    """The cluster with its placement. `given`: the parameters `TAKEN` that the study gives, `defaults` the others.
    `text`: the contents of files. `source` and `place_of(parameter)`: where errors say that something stands.

    InputError: a parameter of the study that the cluster has itself or that no topic takes; a topic twice or unknown;
    a broker without a rack or that is none of the cluster's; what the readers of files refuse.
    """
    place = place_of("cluster")
    own = next((name for name in OWN if name in given), None)
    if own is not None:
        raise InputError(source, place_of(own), "a value, and a cluster", f"no {own} beside cluster, which has its own")
    names = [topic.name for topic in file.topics]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(source, f"{place}.topics", f"topic {twice!r} twice", "each topic once")
    is_rule = file.placement in RULES
    if file.scatter_width is not None and file.placement != "copysets":
        raise InputError(source, f"{place}.scatter_width", str(file.scatter_width), "with placement copysets only")
    layout = _placed(file, given, defaults, text, source, place) if is_rule else _read(file, text, source, place)
    chosen = {topic.name: topic for topic in file.topics}
    taken = {name for name in TAKEN if name in given and _takes(name, is_rule, layout, chosen)}
    unused = next((name for name in TAKEN if name in given and name not in taken), None)
    if unused is not None:
        allowed = f"no {unused} beside a cluster that gives it for each topic"
        raise InputError(source, place_of(unused), str(given[unused]), allowed)
    return cluster_of(layout, file.placement, chosen, given, defaults)


def cluster_of(
    layout: Layout,
    placement: str,
    chosen: Mapping[str, ClusterTopic],
    given: Mapping[str, object],
    defaults: Mapping[str, object],
) -> Cluster:
    """The cluster of a layout, its partitions in classes in the order of their first ones. `chosen`: the study's own
    topics by their names."""
    number = {broker: index for index, broker in enumerate(layout.brokers)}
    counts: dict[tuple[tuple[int, ...], int, str], dict[int, list[int]]] = {}
    for index, topic in enumerate(layout.topics):
        own = chosen.get(topic.name, ClusterTopic(name=topic.name))
        of_file = {} if topic.min_insync_replicas is None else {"min_insync_replicas": topic.min_insync_replicas}
        known = dict(defaults) | of_file | dict(given)
        min_isr, acks = own.min_insync_replicas or known["min_insync_replicas"], own.acks or known["acks"]
        assert isinstance(min_isr, int)
        assert isinstance(acks, str)
        for partition, replicas in enumerate(topic.replicas):
            key = tuple(number[broker] for broker in replicas), min_isr, acks
            counts.setdefault(key, {}).setdefault(index, []).append(partition)
    classes = tuple(
        PartitionClass(*key, tuple((topic, len(found), found[0]) for topic, found in members.items()))
        for key, members in counts.items()
    )
    return Cluster(
        placement=placement,
        brokers=layout.brokers,
        racks=tuple(layout.racks[broker] for broker in layout.brokers) if layout.racks else (),
        topics=tuple(topic.name for topic in layout.topics),
        classes=classes,
    )


def _takes(name: str, is_rule: bool, layout: Layout, chosen: Mapping[str, ClusterTopic]) -> bool:
    """Whether a topic takes the study's parameter; partitions and replicas of a file's topics are the file's."""
    if name in ("partitions", "replication_factor") and not is_rule:
        return False
    return any(getattr(chosen.get(topic.name), name, None) is None for topic in layout.topics)


def _placed(
    file: ClusterFile,
    given: Mapping[str, object],
    defaults: Mapping[str, object],
    text: Text,
    source: str,
    place_name: str,
) -> Layout:
    """The topics of the study, placed by the rule."""
    known, topics = dict(defaults) | dict(given), []
    if not file.topics:
        raise InputError(source, f"{place_name}.topics", "no topic", f"one or more with placement {file.placement}")
    racks = _racks(file, text, source, place_name)
    if file.brokers is None and not racks:
        raise InputError(source, f"{place_name}.brokers", "nothing", "the number of brokers, or racks that name them")
    brokers = _ids(file, racks, source, place_name)
    for topic in file.topics:
        partitions = topic.partitions or known["partitions"]
        factor = topic.replication_factor or known["replication_factor"]
        assert isinstance(partitions, int)
        assert isinstance(factor, int)
        topics.append(PlacedTopic(topic.name, partitions, factor))
    try:
        return place(file.placement, brokers, racks, topics, file.seed, file.scatter_width)
    except ValueError as error:
        found, _, allowed = str(error).partition(": allowed: ")
        raise InputError(source, place_name, found, allowed) from error


def _read(file: ClusterFile, text: Text, source: str, place_name: str) -> Layout:
    """The layout in the file of the placement, with the racks of the study if it gives any."""
    layout = layout_in(text(file.placement), file.placement)
    names = [topic.name for topic in layout.topics]
    for topic in file.topics:
        if topic.name not in names:
            found = f"topic {topic.name!r}{did_you_mean(topic.name, names)}"
            raise InputError(source, f"{place_name}.topics", found, f"a topic of {file.placement}")
        extra = next((name for name in ("partitions", "replication_factor") if getattr(topic, name) is not None), None)
        if extra is not None:
            found, allowed = f"{extra} of {topic.name!r}", f"none: {file.placement} has the replicas of its topics"
            raise InputError(source, f"{place_name}.topics", found, allowed)
    racks = _racks(file, text, source, place_name)
    if file.brokers is None and not racks:
        return layout
    brokers = _ids(file, racks or layout.racks, source, place_name, layout.brokers)
    strange = next((broker for broker in layout.brokers if broker not in brokers), None)
    if strange is not None:
        allowed = f"a broker of the cluster: {', '.join(map(str, brokers))}"
        where = next(
            f"partition {number} of {topic.name!r}"
            for topic in layout.topics
            for number, replicas in enumerate(topic.replicas)
            if strange in replicas
        )
        raise InputError(file.placement, where, f"broker {strange}", allowed)
    known = racks or {broker: layout.racks[broker] for broker in brokers if broker in layout.racks}
    layout = replace(layout, brokers=brokers)
    return with_racks(layout, known, source) if known else layout


def _ids(
    file: ClusterFile, racks: Mapping[int, str], source: str, place_name: str, held: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """The ids of the brokers: those with racks; otherwise from 0 on, or from 1 on where the placement has no 0."""
    first = int(bool(held) and 0 not in held)
    if not racks:
        return tuple(range(first, first + (file.brokers or 0)))
    if file.brokers is None:
        return tuple(sorted(racks))
    missing = [broker for broker in range(first, first + file.brokers) if broker not in racks]
    if len(racks) < file.brokers:
        found = f"racks of {len(racks)} of {file.brokers} brokers, without broker {missing[0]}"
        raise InputError(source, f"{place_name}.racks", found, "a rack for each broker, or no racks")
    if len(racks) > file.brokers:
        strange = max(racks)
        raise InputError(source, f"{place_name}.racks", f"a rack of broker {strange}", f"{file.brokers} brokers")
    return tuple(sorted(racks))


def _racks(file: ClusterFile, text: Text, source: str, place_name: str) -> dict[int, str]:
    """The rack of each broker."""
    if isinstance(file.racks, str):
        return racks_in(text(file.racks), file.racks)
    return racks_of(file.racks, source, f"{place_name}.racks") if file.racks else {}
