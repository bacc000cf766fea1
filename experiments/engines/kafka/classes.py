"""The archive of a release's classes that its JVMs share (class data sharing): a process that starts with it has its
classes parsed and verified already. A broker writes it as it ends, so one is started for that; controllers and the
formatting of disks use the same archive, as they have most classes in common.
"""

from __future__ import annotations

import os
from contextlib import closing

from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.life_cycle import read_life_cycle
from experiments.engines.kafka.processes import Program
from experiments.engines.port import ClusterSpec
from experiments.support.errors import InputError
from experiments.support.releases.installed import Installed
from protocol.config import ClusterConfig
from protocol.features import Generation

WITHIN_MS = 120_000
BROKER = 0


def write_archive(installed: Installed) -> None:
    """Writes the archive of a release. InputError where there is no JDK, and where the broker does not start."""
    spec = ClusterSpec(1, 1, ClusterConfig.of(Generation.KIP_966_ELR))
    fresh = installed.archive.with_suffix(f".{os.getpid()}")
    with closing(KafkaEngine(spec, Program(read_life_cycle(), installed))) as engine:
        engine.start(spec.controller_ids[0])
        engine.cluster.archive = [f"-XX:ArchiveClassesAtExit={fresh}"]
        engine.start(BROKER)
        is_up = engine.run_until(lambda: BROKER in engine.unfenced(), WITHIN_MS)
        engine.terminate(BROKER)
        if not (is_up and engine.run_until(lambda: not engine.is_running(BROKER), WITHIN_MS) and fresh.exists()):
            lines = engine.cluster.last_lines(BROKER)
            raise InputError(str(installed.archive), "", lines or "no archive", "one that a broker writes as it ends")
        fresh.replace(installed.archive)
