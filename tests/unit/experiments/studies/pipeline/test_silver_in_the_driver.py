"""Tables of silver as the driver reads them, where they are small; no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from experiments.studies.pipeline.queries import rows_of
from experiments.studies.sweeps.batches import parquet
from experiments.studies.sweeps.storage import Folder

COLUMNS = {"cell": "string", "trial": "int", "value": "double"}


def test_rows_of_all_files_come_in_the_order_of_runs_and_files(tmp_path: Path) -> None:
    """As a file has them, but with the columns and types that are asked for: a column that an older run lacks is null,
    one that the study does not have any more is left out."""
    store = Folder(tmp_path)
    wide = pa.table({"trial": pa.array([3], pa.int64()), "gone": ["x"], "cell": ["b"], "value": [0.5]})
    store.write("t/run=1/part-00000.parquet", parquet(wide))
    store.write("t/run=0/part-00001.parquet", parquet(pa.table({"cell": ["a"], "trial": [2]})))
    store.write("t/run=0/part-00000.parquet", parquet(pa.table({"cell": ["a"], "trial": [1], "value": [2]})))
    found = rows_of(store, ["t/run=0", "t/run=1"], COLUMNS)
    assert found.schema == pa.schema([("cell", pa.string()), ("trial", pa.int32()), ("value", pa.float64())])
    assert found.to_pydict() == {"cell": ["a", "a", "b"], "trial": [1, 2, 3], "value": [2.0, None, 0.5]}


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    found = rows_of(Folder(tmp_path), [], COLUMNS)
    assert (found.num_rows, found.column_names) == (0, [*COLUMNS])


def test_a_damaged_file_is_no_table_with_fewer_rows(tmp_path: Path) -> None:
    Folder(tmp_path).write("t/run=0/part-00000.parquet", b"PAR1")
    with pytest.raises(pa.ArrowInvalid):
        rows_of(Folder(tmp_path), ["t/run=0"], COLUMNS)
