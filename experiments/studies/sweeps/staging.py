"""An output directory in an object store, as a folder: what Spark and the report need is copied, results are put back.

`silver/`, `gold/` and the pages replace those in the store when the block ends without an error, `gold/cells.json`
and the report last. The folder, below `TMPDIR`, needs room for the study's batches and twice the size of `silver/` and
`gold/`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.studies.sweeps.batches import committed, disjoint, file_names, mark_name
from experiments.studies.sweeps.output import README, RECORD, read_record
from experiments.studies.sweeps.storage import Location, ObjectStore, store_at
from experiments.support.progress import SILENT, Progress

RESULTS = ("silver", "gold")
CELLS, DISTRIBUTIONS, REPORT, LOSS_PAGE = "gold/cells.json", "gold/distributions", "report.html", "loss.html"


@contextmanager
def local_copy(out: Location, progress: Progress = SILENT, *, traces: bool = True) -> Iterator[Path]:
    """The output directory `out` as a folder: itself, or a copy of an object store's for the block. `traces`: whether
    the batches are needed, to be analysed, rather than the numbers of an analysed study. Raises InputError if `out`
    holds no study, StorageFailed."""
    store = store_at(out)
    if not isinstance(store, ObjectStore):
        yield Path(store.place())
        return
    record = read_record(out)
    with tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        names = [RECORD]
        if traces:
            batches = disjoint(committed(store), set(record.cells))
            names += [name for batch in batches for name in (*file_names(batch), mark_name(batch))]
        else:
            names += [f"gold/{name}" for name in store.names("gold") if name.endswith(".json")]
            names += [name for name in store.below(DISTRIBUTIONS) if name.endswith(".parquet")]
        for done, name in enumerate(names):
            progress.show(f"copying {len(names)} files from {store.place()}", at=f"file {done}")
            store.download(name, folder / name)
        yield folder
        progress.show(f"copying the results to {store.place()}")
        _put_back(store, folder)


def _put_back(store: ObjectStore, folder: Path) -> None:
    """Copies the results into the store, and then removes those of before that the new ones do not replace."""
    paths = [path for name in RESULTS for path in (folder / name).rglob("[!._]*") if path.is_file()]
    paths += [folder / name for name in (README, LOSS_PAGE, REPORT) if (folder / name).exists()]
    new = {path.relative_to(folder).as_posix() for path in paths}
    for name in sorted(new, key=lambda name: (name in (CELLS, REPORT), name)):
        store.upload(folder / name, name)
    if any(name.startswith("silver/") for name in new):
        for name in store.below(*RESULTS):
            if name not in new:
                store.remove(name)
