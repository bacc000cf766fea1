"""The silver and gold of a study in DuckDB, on one machine: the baseline of the pipeline's benchmark, and a second
implementation that its numbers are compared with.

The same tables from the same files, written as Parquet, in SQL that shares nothing with the pipeline but the rules in
the docstrings of `experiments/studies/pipeline`. Sums are DuckDB's own, in whatever order it adds.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import duckdb

from experiments.studies.sweeps.output import StudyRecord, read_record
from experiments.studies.trace.metrics import FRACTIONS, METRICS, RATES
from experiments.studies.trace.schema import YEAR_MS

_TABLE = re.compile(r"^-- table (\w+)\n(.*?)\n(?=\n|\Z)", re.S | re.M)
_SHARES = [(metric.column, metric.name) for metric in FRACTIONS.values()]
_FILLED = {
    "year_ms": str(YEAR_MS),
    "shares_before": ", ".join(f"lag({column}) over w as {column}_before" for column, _ in _SHARES),
    "names_before": ", ".join(f"{column}_before" for column, _ in _SHARES),
    "begins": ", ".join(
        f"{column} and not coalesce({column}_before, false) as {column}_begins" for column, _ in _SHARES
    ),
    "sums_of_shares": ", ".join(
        f"sum(case when {column} then weight * length_ms else 0 end) / {YEAR_MS} as {name}, "
        f"sum({column}_begins::int) as {name}_events"
        for column, name in _SHARES
    ),
    "sums_of_rates": ", ".join(
        f"sum(case when kind = '{metric.counts.KIND}' then exp(log_weight) * {'value' if metric.sums_values else 1} "
        f"else 0 end) as {metric.name}, count(*) filter (kind = '{metric.counts.KIND}') as {metric.name}_events"
        for metric in RATES.values()
    ),
    "rates": ", ".join(f"coalesce({name}, 0) as {name}, coalesce({name}_events, 0) as {name}_events" for name in RATES),
    "shares": ", ".join(f"{name}, {name}_events" for name in FRACTIONS),
}
"""What the queries say of every share of time, and of every rate."""


def analyse(out: Path, record: StudyRecord, target: Path, memory: str = "1GB", threads: int = 2) -> None:
    """Writes the silver and gold of the study in `out` as Parquet files into the folder `target`. All batches of `out`
    are read: they must be those of the study."""
    with duckdb.connect(config={"memory_limit": memory, "threads": threads, "temp_directory": str(target)}) as database:
        database.execute("create table cells (digest varchar, cell int, partitions int, acks_all bool)")
        for index, cell in enumerate(record.study.cells):
            parameters = cell.parameters
            row = [record.cells[index], index, parameters.partitions, parameters.acks == "all"]
            database.execute("insert into cells values (?, ?, ?, ?)", row)
        database.execute(
            f"create table trials as select c.cell, t.trial, t.partitions, t.duration_ms "
            f"from read_parquet('{out}/trials/*.parquet') t join cells c on t.cell = c.digest"
        )
        queries = dict(_TABLE.findall(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")))
        filled = _FILLED | {"out": str(out), "target": str(target)}
        database.execute(queries.pop("states").format(**filled))
        queries["cells"] = " union all ".join(queries["cells"].replace("{name}", metric.name) for metric in METRICS)
        for name, query in queries.items():
            database.execute(
                f"copy ({query.format(**filled)}) to '{target}/{name}.parquet' (format parquet, compression snappy)"
            )


def main(out: Path, target: Path, memory: str) -> None:
    analyse(out, read_record(out), target, memory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
