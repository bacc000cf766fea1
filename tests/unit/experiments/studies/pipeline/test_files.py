"""A file of silver grows by the rows of one batch after the other."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.studies.pipeline import bronze
from experiments.studies.pipeline.bronze import TableFile
from experiments.studies.pipeline.schemas import SILVER, table


def batch(*times: int) -> pa.Table:
    columns = {name: pa.array(times) for name in ("trial", "partition", "time_ms", "records")}
    return table(SILVER["losses"], "c", columns.__getitem__, weight=pa.array([1.0] * len(times)))


def test_a_file_has_the_rows_of_all_batches_in_groups_of_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bronze, "GROUP_ROWS", 3)
    batches = [batch(1, 2), batch(), batch(3), batch(4, 5, 6, 7), batch(8)]
    file = TableFile(batches[0].schema)
    for rows in batches:
        file.add(rows)
    content = pq.ParquetFile(pa.BufferReader(file.content()))
    assert content.read().equals(pa.concat_tables(batches))
    assert [content.metadata.row_group(group).num_rows for group in range(content.num_row_groups)] == [3, 4, 1]


def test_a_file_without_rows_has_its_columns() -> None:
    file = TableFile(batch().schema)
    file.add(batch())
    found = pq.read_table(pa.BufferReader(file.content()))
    assert (found.schema.names, len(found)) == (list(SILVER["losses"]), 0)
