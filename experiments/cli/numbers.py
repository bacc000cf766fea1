"""`isray study numbers`: what the source documents say in numbers, claimed and measured (docs/numbers.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.output import Json, fail, option, print_result
from experiments.cli.parse import whole_numbers
from experiments.support.durations import ALLOWED, format_duration, parse_duration_ms
from experiments.support.errors import InputError
from experiments.support.progress import progress
from protocol.v3.store.settings import (
    MAX_LATENCY_MS,
    MAX_MULTI,
    MAX_SESSION_TIMEOUT_MS,
    MAX_SESSIONS,
    MIN_SESSION_TIMEOUT_MS,
)

MAX_NETWORK_MS = 20
"""Clients gather answers about leaders for 50 ms, so that both ways of a message have to take less."""

if TYPE_CHECKING:
    from experiments.numbers.page import Measured


def study_numbers(
    partitions: Annotated[int, option("N", "Partitions that a failover or a restart concerns.", min=1)] = 10_000,
    write_latency: Annotated[str, option("TIME", "What the store takes for a write.")] = "4ms",
    read_latency: Annotated[str, option("TIME", "What the store takes for a read.")] = "1ms",
    network_latency: Annotated[str, option("TIME", "What a message takes.")] = "0ms",
    session_timeout: Annotated[str, option("TIME", "Session timeout of the store.")] = "6s",
    sessions: Annotated[str, option("N,...", "Store sessions of the controller to compare.")] = "1,2,5,10,20",
    multi: Annotated[str, option("N,...", "Updates per transaction to compare.")] = "10,100,1000",
    seed: Annotated[int, option("N", "Seed of the simulated clusters.", min=0)] = 0,
    only: Annotated[str | None, option("L1,...", "Only these items of the requirements.")] = None,
    write: Annotated[Path | None, option("FILE", "Write the numbers as a page, too.")] = None,
    as_json: Json = False,
) -> None:
    """Measure what the sources claim in numbers (requirements L1 to L21), in virtual time: claimed, measured, ratio."""
    from experiments.numbers.claims import claims_of
    from experiments.numbers.conditions import Conditions
    from experiments.numbers.measured_cluster import MeasurementError
    from experiments.numbers.page import document, lines, page, write_page

    conditions = Conditions(
        partitions=partitions,
        write_ms=_duration_ms("--write-latency", write_latency, 1, MAX_LATENCY_MS),
        read_ms=_duration_ms("--read-latency", read_latency, 0, MAX_LATENCY_MS),
        network_ms=_duration_ms("--network-latency", network_latency, 0, MAX_NETWORK_MS),
        session_timeout_ms=_duration_ms(
            "--session-timeout", session_timeout, MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS
        ),
        sessions=_counts("--sessions", sessions, MAX_SESSIONS),
        multi=_counts("--multi", multi, MAX_MULTI),
        seed=seed,
    )
    claims = claims_of(() if only is None else (word.strip() for word in only.split(",")))
    if write is not None and (write.is_dir() or not write.parent.is_dir()):
        raise InputError("--write", "", write, "a file in a directory that exists")
    found: Measured = []
    with progress("isray study numbers", "claims") as shown:
        for number, claim in enumerate(claims):
            shown.show("measure", number, len(claims), claim.item)
            try:
                found.append((claim, claim.measure(conditions)))
            except MeasurementError as error:
                fail(f"isray: {claim.item}: {error}")
    if write is not None:
        write_page(write, page(conditions, found))
    print_result(as_json, document(conditions, found), typer.echo, "\n".join(lines(found)))


def _duration_ms(name: str, text: str, least_ms: int, most_ms: int) -> int:
    try:
        found = parse_duration_ms(text)
    except ValueError as error:
        raise InputError(name, "", repr(text), ALLOWED) from error
    if not least_ms <= found <= most_ms:
        raise InputError(name, "", repr(text), f"{format_duration(least_ms)} to {format_duration(most_ms)}")
    return found


def _counts(name: str, text: str, most: int) -> tuple[int, ...]:
    allowed = f"whole numbers from 1 to {most}, separated by commas"
    found = tuple(sorted(set(whole_numbers(name, text, allowed, least=1))))
    if found[-1] > most:
        raise InputError(name, "", repr(text), allowed)
    return found
