"""What a cell assumes about failures, in sentences: for reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.estimator import sentence as estimator_sentence
from experiments.studies.design.impairments import Isolation, Pause
from experiments.studies.design.mappings import BURST, Burst
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import rack_sizes
from experiments.studies.design.presets import PRESETS
from experiments.studies.design.recorded import RecordedFailures
from experiments.support.fields import BYTES, BYTES_PER_SECOND
from protocol.features import Generation

_DOMAINS = {"rack": "a rack", "cluster": "the cluster"}
_UNITS_OF = {"broker": "a year and broker", "rack": "a year and rack", "cluster": "a year"}
_PEERS = {
    "others": "the other brokers and the controllers",
    "brokers": "the other brokers",
    "controllers": "the controllers",
    "clients": "the clients",
    "all": "all other nodes",
}
_LOST = {
    "both": "messages from and to {} are lost",
    "in": "messages from {} are lost",
    "out": "messages to {} are lost",
}
_UNITS = {"year": YEAR_MS, "day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000, "millisecond": 1}


def assumptions(params: CellParameters, function: str | None = None) -> list[str]:
    """The sentences that describe the failure model of a cell, the most important first. `function`: the name of a
    script's function that replaces the failures of the parameters."""
    sentences = [*_settings(params), *_racks(params)]
    if function is None:
        drawn = (_preset, _own_failures, _kinds, _power, _bursts, _restarts, _impairments)
        sentences += [sentence for part in drawn for sentence in part(params)]
    else:
        sentences.append(f"All failures come from the function {function} of the study's script.")
    sentences += [sentence for part in (_flush, _reassignments, _catch_up, _slow, _start) for sentence in part(params)]
    return list(filter(None, [*sentences, estimator_sentence(params, function is not None)]))


def shared_assumptions(
    cells: Mapping[str, CellParameters], function: str | None = None
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The sentences that all cells have in common, and for each cell, by its name, those that only some cells have."""
    return split_common([(name, assumptions(params, function)) for name, params in cells.items()])


def split_common(each: Sequence[tuple[str, Sequence[str]]]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The sentences that all names have, and for each name those that only some have."""
    common = [sentence for sentence in each[0][1] if all(sentence in sentences for _, sentences in each)]
    own = [(name, [sentence for sentence in sentences if sentence not in common]) for name, sentences in each]
    return common, [(name, sentences) for name, sentences in own if sentences]


def remarks(cells: Iterable[CellParameters]) -> list[str]:
    """What the user should know before the first trial, in one line each: values with another effect than expected."""
    return list(dict.fromkeys(line for params in cells for line in (*_settings(params), *_shared_racks(params))))


def _settings(params: CellParameters) -> Iterator[str]:
    if params.min_insync_replicas > params.replication_factor:
        above = f"min ISR {params.min_insync_replicas} is above RF {params.replication_factor}"
        if Generation(params.generation).features.effective_min_isr:
            yield f"{above}: the effective min ISR is {params.replication_factor}."
        else:
            yield f"{above}, which {params.generation} takes as it is: all writes with acks=all are refused."


def _preset(params: CellParameters) -> Iterator[str]:
    preset = PRESETS.get(params.preset)
    if preset is not None:
        yield f"The failure model begins with the preset {params.preset}. Source: {preset.source}. {preset.numbers}"
        left_out = f"{preset.leaves_out[:1].lower()}{preset.leaves_out[1:]}"
        yield f"The preset assumes: {preset.assumed} It leaves out: {left_out}"


def _own_failures(params: CellParameters) -> Iterator[str]:
    if params.failures is not None:
        yield from _recorded(params.failures, params)
    elif params.broker_mttf is None:
        yield "Brokers do not fail by themselves; only the causes below end them."
    else:
        yield (
            f"Each broker fails by itself, independently of the others, {_time(params.broker_mttf)} after its start: "
            f"{YEAR_MS / params.broker_mttf.mean_ms:.3g} times per year up."
        )
    yield f"A broker that has failed is started again after {_time(params.broker_mttr)}, unless said otherwise."
    if params.restart_time_ms:
        yield f"A broker's process needs {_about(params.restart_time_ms)} from its start until it takes part."


def _recorded(record: RecordedFailures, params: CellParameters) -> Iterator[str]:
    struck = {outage.node for outage in record.outages}
    outages, brokers = _counted(len(record.outages), "outage"), _counted(len(struck), "broker")
    found = f"{outages} of {brokers} in {_about(record.length_ms)}"
    if record.mode == "replay":
        use = (
            "Every trial replays them as they are: trials differ in little, and the intervals do not cover the chance "
            "that lies in the record itself."
        )
    else:
        use = (
            f"Each trial joins blocks of {_about(record.block_ms)} that begin at random times of the record, the same "
            "for all brokers, so that failures that belong together stay together."
        )
    yield f"Failures are those recorded in {record.file} ({found}; digest {record.digest}). {use}"
    if len(struck) < params.brokers:
        missing = ", ".join(str(broker) for broker in range(params.brokers) if broker not in struck)
        yield f"The record has no outage of brokers {missing}, which therefore never fail by themselves."


def _kinds(params: CellParameters) -> Iterator[str]:
    if params.failures is None and (params.broker_mttf is not None or params.burst):
        disk, tail = params.disk_loss_probability, params.tail_loss_probability
        rest = f", and of the rest {_share(tail)} lose the records that were not flushed" if disk < 1.0 else ""
        yield (
            f"Of the failures {_share(params.unclean_probability)} are crashes without a clean-shutdown file; of these "
            f"{_share(disk)} lose the disk{rest}."
        )


def _flush(params: CellParameters) -> Iterator[str]:
    flush, writeback = params.flush_interval_ms, params.writeback_ms
    kept = "when a broker shuts down" if flush is None else f"within {_about(flush)}"
    if writeback is None:
        taken = "never writes the page cache back, so a crash of the machine takes all that was not flushed"
    else:
        taken = f"writes the page cache back after {_about(writeback)}, so a crash of the machine takes what is younger"
    yield f"Records are flushed {kept}; the kernel {taken}. A crash of the process takes nothing."
    yield (
        "Clients write all the time: records are acknowledged until the moment of a failure, wherever that is "
        f"possible. A write fails after {_about(params.delivery_timeout_ms)}."
    )


def _racks(params: CellParameters) -> Iterator[str]:
    if params.cluster is not None:
        yield f"The cluster has {params.cluster.words()}, in {_counted(params.racks, 'rack')}."
        return
    if params.racks == 1:
        return
    sizes = sorted(set(rack_sizes(params)))
    size = _counted(sizes[0], "broker") if len(sizes) == 1 else f"{sizes[0]} or {sizes[-1]} brokers"
    placed = "as many racks as possible" if params.placement == "spread" else "as few racks as possible"
    yield f"There are {params.racks} racks of {size}; the replicas of a partition are in {placed}."
    yield from _shared_racks(params)


def _shared_racks(params: CellParameters) -> Iterator[str]:
    if params.placement == "spread" and 1 < params.racks < params.replication_factor:
        most = -(-params.replication_factor // params.racks)
        yield f"RF {params.replication_factor} is above the {params.racks} racks: up to {most} replicas share a rack."


def _power(params: CellParameters) -> Iterator[str]:
    each = (
        (params.power_events_per_year, params.power_mttr, "the cluster", "a year"),
        (params.rack_power_events_per_year, params.rack_power_mttr, "a rack", "a year and rack"),
    )
    for rate, down, domain, unit in each:
        if rate > 0:
            back = "Each broker is started again on its own" if down is None else f"All are back after {_time(down)}"
            yield (
                f"The power of {domain} fails {rate:g} times {unit}, at random times, and ends all its brokers at "
                "once, unclean; each loses its unflushed records with probability "
                f"{params.tail_lost_with_power:g}, also where its process was down already. {back}."
            )
    for cause in params.power:
        loss = params.tail_lost_with_power if cause.loss is None else cause.loss
        back = (
            "Each broker is started again on its own"
            if cause.down is None
            else f"All are back after {_time(cause.down)}"
        )
        yield (
            f"Power events ({cause.name}) end all brokers of {_DOMAINS[cause.of]} at once, unclean, "
            f"{_times(cause.per_year)} {_UNITS_OF[cause.of]}; each loses its unflushed records with probability "
            f"{loss:g}. {back}."
        )
    shared = (params.power, params.burst, params.failures, *(c.of != "broker" for c in params.impairments))
    if all(rate == 0 for rate, *_ in each) and not any(shared):
        yield "There are no correlated failures."


def _bursts(params: CellParameters) -> Iterator[str]:
    for burst in params.burst:
        yield _burst(params, burst)


def _burst(params: CellParameters, burst: Burst) -> str:
    within = f"within {_about(burst.window_ms)}" if burst.window_ms else "at once"
    where = f"; {_share(burst.same_rack)} of them strike brokers of one random rack only" if burst.same_rack else ""
    rate = burst.events_per_year(rack_sizes(params))
    struck = f"each of the {params.brokers} brokers with probability {burst.fraction or 0.0:g}"
    if burst.size is not None:
        struck = f"{min(burst.size, params.brokers)} of {params.brokers} brokers, drawn at random,"
    ends = "Each is started again on its own"
    if burst.down is not None:
        ends = f"All of a burst are started {_time(burst.down)} after they failed"
    called = "" if burst.name == BURST else f" ({burst.name})"
    return f"Bursts{called} come {rate:.3g} times a year, at random times, and strike {struck} {within}{where}. {ends}."


def _restarts(params: CellParameters) -> Iterator[str]:
    rolling = params.rolling_restart
    if rolling is not None:
        yield (
            f"Every {_about(rolling.every_ms)} each broker in turn is shut down in a controlled way for "
            f"{_about(rolling.down_ms)}; the next one follows {_about(rolling.pause_ms)} after the former was started, "
            "whatever the state of the cluster is."
        )


def _impairments(params: CellParameters) -> Iterator[str]:
    for cause in params.impairments:
        said = f"{_times(cause.per_year)} {_UNITS_OF[cause.of]}, for {_time(cause.duration)}"
        who = "Each broker" if cause.of == "broker" else f"All brokers of {_DOMAINS[cause.of]}"
        verb = "is" if cause.of == "broker" else "are"
        if isinstance(cause, Isolation):
            lost = _LOST[cause.direction].format(_PEERS[cause.peers])
            together = "" if cause.of == "broker" else "; they reach each other"
            yield f"{who} {verb} isolated ({cause.name}) {said}: {lost}{together}."
        elif isinstance(cause, Pause):
            yield f"{who} {verb} paused ({cause.name}) {said}: the process takes no input, and loses none."
        else:
            yield (
                f"{who} {verb} without a disk that takes anything ({cause.name}) {said}: what is to be appended to the "
                "logs waits until the end; heartbeats and reads go on, and so does the metadata log."
            )
    if params.impairments:
        yield (
            "An isolation or a slow disk lasts through a restart of the broker, a pause ends with the process. "
            "Controllers do not fail and are not isolated from each other."
        )


def _reassignments(params: CellParameters) -> Iterator[str]:
    if params.reassignments is not None:
        fetched = "at once" if params.catch_up is None else "as after the loss of its disk"
        yield (
            f"A replica of each partition moves to another broker {params.reassignments.per_year:g} times a year, at "
            "random times, whatever the state of the cluster is: one replica, drawn at random, to a running broker "
            f"without one, which fetches the whole log, {fetched}. A partition whose last move is not complete is left "
            "alone."
        )


def _catch_up(params: CellParameters) -> Iterator[str]:
    found = params.catch_up
    if found is None:
        yield "Catch-up is immediate: a restarted replica has no volume to fetch."
        return
    per_hour_ms, backlog_ms = found.needed_ms(3_600_000, lost_disk=False), found.needed_ms(0, lost_disk=True)
    yield (
        f"A restarted broker fetches what it lacks at {BYTES_PER_SECOND.write(found.rate)}: what was written meanwhile "
        f"({BYTES_PER_SECOND.write(found.write_rate)}; {_about(per_hour_ms)} for an hour down) and, after the loss of "
        f"its disk, {BYTES.write(found.backlog)} besides ({_about(backlog_ms)}). Until then it is not in sync, but may "
        "be elected leader where the protocol allows that."
    )


def _slow(params: CellParameters) -> Iterator[str]:
    if params.slow is not None:
        yield (
            f"Each broker is slow {params.slow.per_year:g} times a year, for {_time(params.slow.duration)}: all that "
            f"it sends arrives {_about(params.slow.delay_ms)} late."
        )


def _start(params: CellParameters) -> Iterator[str]:
    is_stationary = params.start == "stationary"
    long_run = "A trial measures the long run: failures begin long before it, and a warm-up is not measured."
    yield long_run if is_stationary else "A trial begins with all brokers up."


def _times(rate: float) -> str:
    return f"{rate:g} time{'s' * (rate != 1.0)}"


def _time(distribution: Distribution) -> str:
    """`15 minutes on average (exponential)`; a constant time is exact."""
    mean = _about(distribution.mean_ms)
    if distribution.dist == "constant":
        return f"exactly {mean}"
    shape = "" if distribution.shape is None else f", shape {distribution.shape:g}"
    return f"{mean} on average ({distribution.dist}{shape})"


def _about(duration_ms: int) -> str:
    """A duration to three significant digits, in the largest unit of which it has one or more."""
    unit, size_ms = next((found for found in _UNITS.items() if duration_ms >= found[1]), ("millisecond", 1))
    number = f"{duration_ms / size_ms:.3g}"
    return f"{number} {unit}{'s' * (number != '1')}"


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _share(probability: float) -> str:
    return {0.0: "none", 1.0: "all"}.get(probability, f"{100 * probability:.3g} %")
