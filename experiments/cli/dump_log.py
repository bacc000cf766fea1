"""`isray dump-log`: kafka-dump-log.sh, and the records of kafka-metadata-shell.sh (J14, D33). It prints the logs on a
disk, whether its node runs, has ended or cannot start; it locks and changes nothing.

`--directory` prints all logs of a node's directory, or with `--cluster-metadata` the metadata log and its snapshot, or
with `--partition` one partition's, by the topic's name, or its id where the disk does not know the name. `--files`
prints segments (`OFFSET.log`) and snapshots (`checkpoint`), separated by commas.

Bytes after the last whole batch are reported. Above the flushed offset they are left by a crash or by a node that is
writing; below it they are damage, and exit code 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, cast

import typer

from experiments.cli.output import Json, fail_if, flag, option, print_json
from experiments.cli.parse import one_of, readable
from experiments.support.errors import InputError
from protocol.ids import METADATA_LOG
from protocol.quorum.log import SNAPSHOT_FILE

if TYPE_CHECKING:
    from experiments.engines.ray.dump import LogFiles

_BATCH = (
    "baseOffset: {base_offset} lastOffset: {last_offset} count: {count} partitionLeaderEpoch: {leader_epoch} "
    "producerId: {producer_id} producerEpoch: {producer_epoch} baseSequence: {base_sequence} "
    "CreateTime: {timestamp_ms} position: {position} size: {size} crc: {crc} isvalid: {valid}"
)


def dump_log(
    directory: Annotated[Path | None, option("DIR", "A node's directory.")] = None,
    files: Annotated[str | None, option("FILE,...", "Segments and snapshots.")] = None,
    partition: Annotated[str | None, option("TOPIC-N", "Of --directory.")] = None,
    cluster_metadata: Annotated[bool, flag("--cluster-metadata", "Of --directory.")] = False,
    as_json: Json = False,
) -> None:
    """Print the batches of logs on a disk, and the records of the metadata log."""
    source = one_of({"--directory": directory is not None, "--files": files is not None})
    if partition is not None and cluster_metadata:
        raise InputError("--partition", "", "--partition with --cluster-metadata", "one of the two")
    if directory is None and (partition is not None or cluster_metadata):
        option = "--partition" if partition is not None else "--cluster-metadata"
        raise InputError(option, "", f"{option} with --files", f"{option} only with --directory")
    with readable(source, "what can be read"):
        if directory is not None:
            logs, snapshots, topics = _of_directory(directory, partition, cluster_metadata)
        else:
            logs, snapshots, topics = *_of_files((files or "").split(",")), {}
        is_sound = _dump(logs, snapshots, topics, as_json)
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


class LogDocument(TypedDict):
    """A log in `isray dump-log --json`; the entries are batches and what follows the last whole one."""

    log: str
    partition: str
    start_offset: int
    flushed_offset: int
    entries: list[Mapping[str, object]]


def _dump(logs: list[LogFiles], snapshots: list[Path], topics: dict[str, str], as_json: bool) -> bool:
    """Prints logs and snapshots; returns whether none of them is damaged."""
    from experiments.engines.ray import dump

    found_logs: list[LogDocument] = []
    found_snapshots: list[Mapping[str, object]] = []
    is_sound = True
    for log in logs:
        head: LogDocument = {
            "log": log.name,
            "partition": _partition_text(log.name, topics),
            "start_offset": log.start_offset,
            "flushed_offset": log.flushed_offset,
            "entries": [],
        }
        found_logs.append(head)
        file: str | None = None
        for entry in dump.dump_log(log, topics):
            is_sound = is_sound and not entry.get("is_damage")
            if as_json:
                head["entries"].append(entry)
                continue
            if entry.get("file", file) != file:
                file = str(entry["file"])
                typer.echo(f"Dumping {file}")
                offsets = f"log start offset {log.start_offset}, flushed to {log.flushed_offset}"
                typer.echo(f"{head['partition']}: {offsets}")
            _print_entry(entry)
    for path in snapshots:
        snapshot = dump.dump_snapshot(path, topics)
        is_sound = is_sound and not snapshot.get("is_damage")
        found_snapshots.append(snapshot)
        if not as_json:
            _print_snapshot(snapshot)
    if as_json:
        print_json({"logs": found_logs, "snapshots": found_snapshots})
    return is_sound


def _print_entry(entry: Mapping[str, object]) -> None:
    if "base_offset" in entry:
        typer.echo(_BATCH.format(**entry, valid=str(entry["crc_ok"]).lower()))
        for record in _records(entry, "records"):
            typer.echo(f"| offset: {record['offset']} {record['text']}")
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
