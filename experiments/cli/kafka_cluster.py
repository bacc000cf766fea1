"""What `isray up` runs: nodes on Ray, or with `--engine kafka` the processes of an installed Apache Kafka."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import StrEnum

from experiments.engines.clusters.cluster_state import ClusterOptions, ClusterState
from experiments.engines.clusters.launch import NotReadyError, config_of
from experiments.support.errors import InputError
from experiments.support.releases.installed import exact_release, installed_release
from protocol.features import RELEASED, Generation


class EngineName(StrEnum):
    """What the nodes of a cluster are."""

    RAY = "ray"
    KAFKA = "kafka"


class ClusterFailed(RuntimeError):
    """A cluster that has not become ready, and not because of its input; why, in one line."""

    def __init__(self, error: Exception) -> None:
        super().__init__(" ".join(str(error).split()))


def refuse_given(given: Mapping[str, object], found: str, allowed: str) -> None:
    """InputError for the first option that has a value."""
    for name, value in given.items():
        if value is not None:
            raise InputError(name, "", found, allowed)


def kafka_options(given: Mapping[str, object], release: str | None) -> ClusterOptions:
    """The options of a cluster of Apache Kafka; those that are None have their defaults. InputError for a generation
    that no release has, a release that is not installed, and a config that the engine does not take.
    """
    from experiments.engines.kafka.properties import REFUSED

    found = installed_release(release, os.environ, "--kafka")
    rules = exact_release(found.release, "--kafka")
    values = {"generation": Generation.KIP_966_ELR, "installed": found.release, "kafka_release": rules}
    chosen = {name: value for name, value in given.items() if value is not None}
    options = ClusterOptions.model_validate(values | chosen | {"engine": "kafka"})
    if options.generation not in RELEASED:
        allowed = f"{', '.join(it.value for it in RELEASED)}, the generations that releases of Kafka run"
        raise InputError("--generation", "", options.generation.value, allowed)
    for name in options.config:
        if name in REFUSED:
            raise InputError("--config", name, "--engine kafka", REFUSED[name])
    config_of(options)
    return options


def run_engine(options: ClusterOptions, ready: Callable[[ClusterState], None], report: Callable[[str], None]) -> bool:
    """Runs a cluster until a signal ends it; False where its Ray was lost, which has been reported. InputError where
    the input is wrong, ClusterFailed where it does not become ready.
    """
    if options.engine == "kafka":
        _run_kafka(options, ready, report)
        return True
    from experiments.engines.ray.session import stay_on_loopback

    if options.address is None:
        stay_on_loopback()
    from experiments.check.cluster_recorder import recorder_of
    from experiments.engines.ray.running import CLUSTER_FAILURES, run_cluster

    try:
        return run_cluster(options, config_of(options), ready, report, recorder_of)
    except CLUSTER_FAILURES as error:
        raise ClusterFailed(error) from error


def _run_kafka(options: ClusterOptions, ready: Callable[[ClusterState], None], report: Callable[[str], None]) -> None:
    from experiments.check.engine_recorder import EngineRecording
    from experiments.engines.kafka.processes import Program
    from experiments.engines.kafka.running import run_kafka_cluster
    from experiments.engines.port import ClusterSpec

    program = Program.of(options.installed, os.environ)
    spec = ClusterSpec(options.brokers, options.controllers, config_of(options), racks=options.racks or 0)
    try:
        run_kafka_cluster(options, spec, program, ready, report, EngineRecording)
    except NotReadyError as error:
        raise ClusterFailed(error) from error
