"""What changed in Kafka's releases, from `protocol.kafka_release` and `protocol.kafka_rules`."""

from __future__ import annotations

from experiments.conformance.departures import DEPARTURES
from experiments.reference.markdown import code, sections, table
from protocol.kafka_release import RELEASE_CHANGES, KafkaRelease

TITLE = "Kafka's releases"
SUMMARY = "the values of `kafka_release`, the rules that changed between them, and where isray departs from all of them"


def page() -> str:
    changes = ((code(it.name), it.first, it.before, it.since, it.source) for it in RELEASE_CHANGES)
    has = (
        (code(release.value), *("yes" if release.has(it) else "no" for it in RELEASE_CHANGES))
        for release in KafkaRelease
    )
    departed = (
        (code(it.name), it.rule.kafka, it.rule.source, it.reason, code(it.scenario) if it.scenario else "")
        for it in DEPARTURES
    )
    return sections(
        "`kafka_release` (`cluster.kafka_release` in a scenario, a parameter of studies, `--kafka-release` of "
        "`isray up` and `isray explore`) selects the release of Apache Kafka whose rules hold in the generations "
        "`kip-497` and `kip-966-elr`; the newest is the default. Releases that decide alike share a name: `4.1.2` is "
        "4.1.1 to 4.2.1, `4.3` is 4.3.0 and 4.3.1. Another release from 4.0 to 4.4 stands for the one that decides as "
        "it does.",
        "## What changed",
        table(("rule", "since", "before", "since then", "source"), changes),
        table(("release", *(code(it.name) for it in RELEASE_CHANGES)), has),
        "## What isray does otherwise in every release",
        table(("rule", "Kafka", "where", "isray", "scenario"), departed),
    )
