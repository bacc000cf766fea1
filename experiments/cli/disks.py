"""`isray storage` and `isray dump-log`: kafka-storage.sh (D31, J15), and kafka-dump-log.sh with the records of
kafka-metadata-shell.sh (J14, D33), which prints the logs on a disk, whether its node runs, has ended or cannot start.

A controller's directory is formatted with exactly one of `--standalone`, `--initial-controllers` and
`--no-initial-controllers`; without an own first voter where `controller.quorum.voters` of the properties names static
voters. A broker's has none, as with `--no-initial-controllers`. Of a properties file of Kafka's, the id, the role, the
directory and the static voters count. A directory is not formatted twice, and never if it belongs to
another node or cluster: exit code 2, and nothing in it changes. `info` ends with exit code 1 if the directory is not
formatted, or something in it is damaged; so does `dump-log` for damage below the flushed offset. Above it, bytes after
the last whole batch are left by a crash or by a node that is writing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from experiments.cli.help import App
from experiments.cli.output import Json, fail_if, flag, option, print_json, print_result
from experiments.cli.parse import DIRECTORY_ID, directory_id, listener, one_of, only_with, readable
from experiments.support.errors import InputError, MissingInput, shown
from experiments.support.properties import read_properties
from experiments.support.record_text import replica_text
from protocol.ids import (
    FIRST_CONTROLLER,
    METADATA_LOG,
    RECOVERY_MANAGER,
    UUID_BITS,
    NodeId,
    is_broker,
    is_controller,
    node_name,
    uuid_text,
)
from protocol.quorum.log import SNAPSHOT_FILE
from protocol.quorum.voters import ReplicaKey, VoterSet

if TYPE_CHECKING:
    from experiments.engines.ray.directories import Document
    from experiments.engines.ray.dump import LogFiles

LISTENER_NAME = "CONTROLLER"
"""The name of the listener of a first voter, as in the properties that Kafka ships."""
_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}")
NodeDirectory = Annotated[Path | None, option("DIR", "The node's directory.")]
ServerProperties = Annotated[
    Path | None,
    option("FILE", "A server's properties: node.id, process.roles, log.dirs. Instead of the others.", "--config", "-c"),
]
Controllers = Annotated[
    str | None,
    option(
        "ID@UUID,...", "The first voters, this node among them; or ID@HOST:PORT:UUID.", "--initial-controllers", "-I"
    ),
]

app = App("Directories of nodes.")


@app.register("random-uuid", "isray storage random-uuid")
def random_uuid(as_json: Json = False) -> None:
    """A fresh uuid, for a cluster or a disk."""
    uuid = uuid_text(randbits(UUID_BITS))
    print_result(as_json, {"uuid": uuid}, typer.echo, uuid)


@app.register("format", "isray storage format --cluster-id c --node-id 1000 --directory DIR --standalone")
def format_(
    cluster_id: Annotated[str, option("ID", "The id of the cluster.", "--cluster-id", "-t")],
    node_id: Annotated[int | None, option("N", "Brokers from 0, controllers from 1000.")] = None,
    directory: NodeDirectory = None,
    config: ServerProperties = None,
    standalone: Annotated[bool, typer.Option("--standalone", "-s", help="The one first voter.")] = False,
    initial_controllers: Controllers = None,
    no_initial_controllers: Annotated[
        bool, typer.Option("--no-initial-controllers", "-N", help="Joins a quorum, or is a static voter.")
    ] = False,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", "-g", help="Succeed where the directory already is this node's.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Format a directory for a node that has never run."""
    if not _ID.fullmatch(cluster_id):
        raise InputError("--cluster-id", "", repr(cluster_id), "letters, digits, '.', '_' and '-', at most 100 of them")
    ways = {
        "--standalone": standalone,
        "--initial-controllers": initial_controllers is not None,
        "--no-initial-controllers": no_initial_controllers,
    }
    only_with("--directory", _place(config, directory), {"--node-id": node_id is not None})
    if config is None and node_id is None:
        raise MissingInput("--node-id", "--node-id with --directory")
    server = _Server(cast(NodeId, node_id), cast(Path, directory)) if config is None else _server_of(config)
    node_id, directory = server.node_id, server.directory
    if server.static_voters:
        for way in ("--standalone", "--initial-controllers"):
            if ways[way]:
                raise InputError(way, "", f"{way} with controller.quorum.voters in {config}", "one of the two")
        ways["--no-initial-controllers"] = True
    me, voters = _first_voters(node_id, ways, initial_controllers)
    from experiments.engines.ray.directories import describe_directory, format_directory, owner_of

    with readable("--directory", "an empty directory, or the node's own"):
        owner = owner_of(directory)
        if owner not in (None, (cluster_id, node_id)):
            raise InputError(str(directory), "owner", _owner(*owner), _owner(cluster_id, node_id))
        is_new = format_directory(directory, cluster_id, node_id, me, voters)
        found = describe_directory(directory) or {}
    if not is_new and not ignore_formatted:
        raise InputError("--directory", "", f"{directory}, which is formatted already", "one that is not")
    if as_json:
        print_json(found | {"formatted": is_new})
    elif is_new:
        disk = f", directory id {found['directory_id']}" if me is not None else ""
        typer.echo(f"Formatting {directory} for {node_name(node_id)} of cluster {cluster_id}{disk}.")
    else:
        typer.echo(f"{directory} is formatted already.")


class _Server(NamedTuple):
    """The node to format or describe; `static_voters`: its properties name the voters of the quorum."""

    node_id: NodeId
    directory: Path
    static_voters: bool = False


def _place(config: Path | None, directory: Path | None) -> str:
    """The option that gives the directory. InputError for none and for both."""
    return one_of({"--directory": directory is not None, "--config": config is not None})


def _server_of(path: Path) -> _Server:
    """The node of a properties file. InputError where it is not a server's, or one of a server that no node can be."""
    found, source = read_properties(path), str(path)
    number = found.get("node.id", found.get("broker.id", ""))
    role = found.get("process.roles", "")
    is_of_role = {"broker": is_broker, "controller": is_controller}
    if not (number.isascii() and number.isdecimal()):
        raise InputError(source, "node.id", shown(number) if number else "nothing", "the id of a node")
    if role not in is_of_role:
        allowed = f"{' or '.join(is_of_role)}: a node has one role"
        raise InputError(source, "process.roles", role or "nothing", allowed)
    if not is_of_role[role](int(number)):
        allowed = f"brokers from 0, controllers from {FIRST_CONTROLLER}"
        raise InputError(source, "node.id", f"{number} of a {role}", allowed)
    return _Server(int(number), _directory_of(found, source), bool(found.get("controller.quorum.voters")))


def _directory_of(found: Mapping[str, str], source: str) -> Path:
    """The one directory of the properties of a server."""
    logs = found.get("log.dirs") or found.get("log.dir", "")
    named = dict.fromkeys(name.strip() for name in (*logs.split(","), found.get("metadata.log.dir", "")))
    directories = [name for name in named if name]
    if len(directories) != 1:
        raise InputError(source, "log.dirs", ", ".join(directories) or "nothing", "one directory: a node has one")
    return Path(directories[0])


def _owner(cluster_id: str, node_id: NodeId) -> str:
    return f"{node_name(node_id)} of cluster {cluster_id}"


def _first_voters(node_id: NodeId, ways: Mapping[str, bool], listed: str | None) -> tuple[ReplicaKey | None, VoterSet]:
    """The key of a controller, None for a broker, and the first voters to write to its log."""
    if is_broker(node_id):
        given = [way for way, is_given in ways.items() if is_given and way != "--no-initial-controllers"]
        if given:
            raise InputError(given[0], "", f"{given[0]} for {node_name(node_id)}", f"{given[0]} for a controller")
        return None, VoterSet()
    if not is_controller(node_id):
        allowed = f"a broker's id below {FIRST_CONTROLLER}, or a controller's below {RECOVERY_MANAGER}"
        raise InputError("--node-id", "", node_id, allowed)
    way = one_of(ways)
    if listed is not None:
        voters = _listed(listed)
        own = voters.key_of(node_id)
        if own is None:
            raise InputError("--initial-controllers", "", listed, f"a list with this node, {node_id}")
        return own, voters
    me = ReplicaKey(node_id, uuid_text(randbits(UUID_BITS)))
    return me, VoterSet.of([me] if way == "--standalone" else [])


def _listed(text: str) -> VoterSet:
    form = f"ID@UUID or ID@HOST:PORT:UUID, by commas: a controller's id from {FIRST_CONTROLLER}, and {DIRECTORY_ID}"
    keys, endpoints = [], []
    for item in text.split(","):
        node, _, place = item.strip().partition("@")
        address, is_given, uuid = place.rpartition(":")
        if not node.isdecimal() or not is_controller(int(node)):
            raise InputError("--initial-controllers", "", repr(item), form)
        keys.append(ReplicaKey(int(node), directory_id("--initial-controllers", uuid, form)))
        where = f"{LISTENER_NAME}://{address}"
        endpoints.append((listener("--initial-controllers", where, form),) if is_given else ())
    if any(len(set(values)) < len(keys) for values in zip(*keys, strict=True)):
        raise InputError("--initial-controllers", "", text, "each id and each uuid once")
    return VoterSet(dict(sorted(zip(keys, endpoints, strict=True))))


@app.register("info", "isray storage info --directory DIR")
def info(directory: NodeDirectory = None, config: ServerProperties = None, as_json: Json = False) -> None:
    """The owner of a directory, and its content."""
    from experiments.engines.ray.directories import describe_directory

    _place(config, directory)
    directory = directory or _server_of(cast(Path, config)).directory
    with readable("--directory", "a node's directory"):
        found = describe_directory(directory)
    faults = [f"{directory} is not formatted."] if found is None else found["faults"]
    if as_json:
        print_json(found or {"directory": str(directory), "faults": faults})
    elif found is not None:
        typer.echo("\n".join(_info_lines(found)))
    for fault in faults:
        typer.echo(f"isray: {fault}", err=True)
    fail_if(faults)


def _info_lines(found: Document) -> Iterator[str]:
    yield f"{found['directory']}: {_owner(found['cluster_id'], found['node_id'])}"
    yield f"format version: {found['format_version']}"
    if "directory_id" in found:
        yield f"directory id: {found['directory_id']}"
        voted = "no candidate" if found["voted"] is None else _voter(found["voted"])
        leader = "no leader" if found["leader_id"] < 0 else f"leader {found['leader_id']}"
        yield f"quorum: epoch {found['leader_epoch']}, {leader}, voted for {voted}"
    if found.get("voters"):
        yield f"voters: {', '.join(map(_voter, found['voters']))}"
    for log in found["logs"]:
        yield f"log {log['log']}: from {log['start_offset']}, flushed to {log['flushed_offset']}, {log['size']} bytes"


def _voter(found: Document) -> str:
    return replica_text(found["voter_id"], found["voter_uuid"])


_BATCH = (
    "baseOffset: {base_offset} lastOffset: {last_offset} count: {count} partitionLeaderEpoch: {leader_epoch} "
    "producerId: {producer_id} producerEpoch: {producer_epoch} baseSequence: {base_sequence} "
    "CreateTime: {timestamp_ms} position: {position} size: {size} crc: {crc} isvalid: {valid}"
)


class RecordLines(NamedTuple):
    """What is printed of records that producers wrote: their values, a line for each, their values alone."""

    values: bool
    records: bool
    values_alone: bool


def dump_log(
    directory: Annotated[Path | None, option("DIR", "A node's directory.")] = None,
    files: Annotated[str | None, option("FILE,...", "Segments and snapshots.")] = None,
    partition: Annotated[str | None, option("TOPIC-N", "Of --directory.")] = None,
    cluster_metadata: Annotated[bool, flag("--cluster-metadata", "Of --directory.")] = False,
    cluster_metadata_decoder: Annotated[
        bool, flag("--cluster-metadata-decoder", "The --files are of the metadata log.")
    ] = False,
    print_data_log: Annotated[bool, flag("--print-data-log", "The values of records, too.")] = False,
    deep_iteration: Annotated[bool, flag("--deep-iteration", "A line for each record.")] = False,
    skip_record_metadata: Annotated[
        bool, flag("--skip-record-metadata", "With --print-data-log: nothing but values.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the batches of logs on a disk, and the records of the metadata log."""
    source = one_of({"--directory": directory is not None, "--files": files is not None})
    if partition is not None and cluster_metadata:
        raise InputError("--partition", "", "--partition with --cluster-metadata", "one of the two")
    if directory is None and (partition is not None or cluster_metadata):
        option = "--partition" if partition is not None else "--cluster-metadata"
        raise InputError(option, "", f"{option} with --files", f"{option} only with --directory")
    only_with("--files", source, {"--cluster-metadata-decoder": cluster_metadata_decoder})
    if skip_record_metadata and not print_data_log:
        raise MissingInput("--print-data-log", "--print-data-log with --skip-record-metadata")
    lines = RecordLines(print_data_log, deep_iteration or print_data_log, skip_record_metadata)
    with readable(source, "what can be read"):
        if directory is not None:
            logs, snapshots, topics = _of_directory(directory, partition, cluster_metadata)
        else:
            logs, snapshots, topics = *_of_files((files or "").split(",")), {}
        others = [str(log.segments[0]) for log in logs if log.name != METADATA_LOG]
        if cluster_metadata_decoder and others:
            raise InputError("--cluster-metadata-decoder", "", others[0], "files of the metadata log")
        is_sound = _dump(logs, snapshots, topics, lines, as_json)
    fail_if(not is_sound)


def _of_directory(
    directory: Path, partition: str | None, cluster_metadata: bool
) -> tuple[list[LogFiles], list[Path], dict[str, str]]:
    """The logs and snapshots to print, and the names of topics by id."""
    from experiments.engines.ray.dump import known_topics, log_files, log_names, snapshot_file

    if not directory.is_dir():
        raise InputError("--directory", "", f"{directory}, which is no directory", "a node's directory")
    wanted, topics = log_names(directory), known_topics(directory)
    if cluster_metadata:
        wanted = [name for name in wanted if name == METADATA_LOG]
    elif partition is not None:
        wanted = [_log_of(partition, wanted, topics)]
    snapshot = snapshot_file(directory) if partition is None else None
    if not wanted and snapshot is None:
        raise InputError("--directory", "", f"{directory}, which holds no such log", "a node's directory with logs")
    return [log_files(directory, name) for name in wanted], [snapshot] if snapshot else [], topics


def _log_of(partition: str, names: list[str], topics: dict[str, str]) -> str:
    """The log of a partition; InputError where there is none, or where several topics of one name had it."""
    topic, _, index = partition.rpartition("-")
    ids = {topic, *(topic_id for topic_id, name in topics.items() if name == topic)}
    found = [name for name in names if name in {f"{topic_id}/{index}" for topic_id in ids}]
    if len(found) != 1:
        there = [_partition_text(name, {} if found else topics) for name in (found or names)]
        raise InputError("--partition", "", partition, f"one of {', '.join(there) or 'no logs'}")
    return found[0]


def _partition_text(log: str, topics: dict[str, str]) -> str:
    """`t-0` for the log of a partition, by the topic's id where its name is not known."""
    topic_id, _, index = log.rpartition("/")
    return f"{topics.get(topic_id, topic_id)}-{index}"


def _of_files(names: list[str]) -> tuple[list[LogFiles], list[Path]]:
    from experiments.engines.ray.dump import segment_alone

    logs, snapshots = [], []
    for name in names:
        path = Path(name.strip())
        if not path.is_file():
            raise InputError("--files", "", f"{name}, which is no file", "segments and snapshots")
        if path.name == SNAPSHOT_FILE:
            snapshots.append(path)
        elif path.suffix == ".log" and path.stem.isdecimal():
            logs.append(segment_alone(path))
        else:
            raise InputError("--files", "", name, f"segments (OFFSET.log) and snapshots ({SNAPSHOT_FILE})")
    return logs, snapshots


def _dump(
    logs: list[LogFiles], snapshots: list[Path], topics: dict[str, str], lines: RecordLines, as_json: bool
) -> bool:
    """Prints logs and snapshots; returns whether none of them is damaged."""
    from experiments.engines.ray import dump

    found_logs: list[Mapping[str, object]] = []
    found_snapshots: list[Mapping[str, object]] = []
    is_sound = True
    for log in logs:
        partition = _partition_text(log.name, topics)
        entries: list[Mapping[str, object]] = []
        offsets = {"start_offset": log.start_offset, "flushed_offset": log.flushed_offset}
        found_logs.append({"log": log.name, "partition": partition, **offsets, "entries": entries})
        file: str | None = None
        for entry in dump.dump_log(log, topics, lines.records):
            is_sound = is_sound and not entry.get("is_damage")
            if as_json:
                entries.append(entry)
                continue
            if entry.get("file", file) != file:
                file = str(entry["file"])
                typer.echo(f"Dumping {file}")
                typer.echo(f"{partition}: log start offset {log.start_offset}, flushed to {log.flushed_offset}")
            _print_entry(entry, lines)
    for path in snapshots:
        snapshot = dump.dump_snapshot(path, topics)
        is_sound = is_sound and not snapshot.get("is_damage")
        found_snapshots.append(snapshot)
        if not as_json:
            _print_snapshot(snapshot)
    if as_json:
        print_json({"logs": found_logs, "snapshots": found_snapshots})
    return is_sound


_RECORD = "CreateTime: {timestamp_ms} keySize: -1 valueSize: {value_size} sequence: {sequence} headerKeys: []"


def _record_text(record: Mapping[str, object], lines: RecordLines) -> str:
    """A record's line: of the metadata log as its records are written, else as Kafka's tool prints one without key."""
    value = [f"payload: {record['value']}"] if lines.values and "value" in record else []
    described = str(record["text"]) if "text" in record else _RECORD.format(**record)
    metadata = [f"offset: {record['offset']} {described}"] if not (value and lines.values_alone) else []
    return " ".join((*metadata, *value))


def _print_entry(entry: Mapping[str, object], lines: RecordLines) -> None:
    if "base_offset" in entry:
        typer.echo(_BATCH.format(**entry, valid=str(entry["crc_ok"]).lower()))
        for record in _records(entry, "records"):
            typer.echo(f"| {_record_text(record, lines)}")
    if "fault" in entry:
        where = ""
        if "base_offset" not in entry and "position" in entry:
            where = f"{entry['size']} bytes at position {entry['position']}, offset {entry['end_offset']}: "
        what = "damaged" if entry["is_damage"] else "not flushed, the next start drops it"
        typer.echo(f"! {where}{entry['fault']} ({what})")


def _print_snapshot(snapshot: Mapping[str, object]) -> None:
    typer.echo(f"Dumping {snapshot['file']}")
    if "end_offset" in snapshot:
        end, epoch = snapshot["end_offset"], snapshot["last_epoch"]
        typer.echo(f"snapshot of what is below offset {end}: last epoch {epoch}, {snapshot['size']} bytes")
        for record in (*_records(snapshot, "voters"), *_records(snapshot, "records")):
            typer.echo(f"| {record['text']}")
    if "fault" in snapshot:
        typer.echo(f"! {snapshot['fault']} (damaged)")


def _records(document: Mapping[str, object], name: str) -> Sequence[Mapping[str, object]]:
    return cast(Sequence[Mapping[str, object]], document.get(name, ()))
