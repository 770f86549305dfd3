"""Statistics of a Delta table, from its log: files, commits, and the cost of commits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehead.lake.planner import Split
from lakehead.lake.store_reader import FETCH_BYTES
from lakehead.lake.tables.data_file import DataFile
from lakehead.lake.tables.delta_table import Table, TableUnavailable, location
from lakehead.storage.object_store.counted import StoreStats, put_requests

RUNS = 20
"""Number of commits whose costs are added up."""

_SMALL = 4
_READ, _WRITTEN = "lakehead.bytes.read", "lakehead.bytes.written"
_SECONDS, _GETS, _PUTS = "lakehead.seconds", "lakehead.gets", "lakehead.puts"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """The cost of runs: bytes, working time, and requests for data (not those for the
    table's log).
    """

    runs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    gets: int = 0
    puts: int = 0

    @property
    def dollars(self) -> float:
        """The price of the requests at S3 standard's prices."""
        stats = StoreStats()
        stats.get.requests, stats.put.requests = self.gets, self.puts
        return stats.cost()

    def commit_info(self) -> dict[str, str]:
        """Return the commit info of its cost."""
        return {
            _READ: str(self.bytes_read),
            _WRITTEN: str(self.bytes_written),
            _SECONDS: f"{self.seconds:.3f}",
            _GETS: str(self.gets),
            _PUTS: str(self.puts),
        }


def run_cost(splits: Sequence[Split], files: Sequence[DataFile], seconds: float) -> RunCost:
    """Return what a run took that read `splits` and wrote `files`."""
    ranges = [range_ for split in splits for range_ in split.ranges]
    return RunCost(
        runs=1,
        bytes_read=sum(range_.length for range_ in ranges),
        bytes_written=sum(file.size_bytes for file in files),
        seconds=seconds,
        gets=sum(-(-range_.length // FETCH_BYTES) for range_ in ranges),
        puts=sum(put_requests(file.size_bytes) for file in files),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """A table at one version. A file is small below a quarter of the size that files are to have.
    `last_commit_ms` is that of any commit; `cost` of the newest `RUNS` that brought records.
    """

    table: Table
    version: int
    last_commit_ms: int
    files: int
    size_bytes: int
    small_files: int
    rows: int | None
    cost: RunCost


def table_statistics(
    uri: str, *, file_bytes: int, with_cost: bool = True
) -> TableStatistics | None:
    """Return the statistics of the table at `uri`, None if there is none. Raises TableUnavailable,
    SettingsError.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    place, options = location(uri)
    try:
        handle = DeltaTable(place, storage_options=options)
        added = pa.table(handle.get_add_actions(flatten=True))
        history = handle.history(RUNS if with_cost else 1)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        text = " ".join(str(error).split())
        raise TableUnavailable(f"cannot read table {uri}: {text}") from error
    sizes, counts = added.column("size_bytes"), added.column("num_records")
    return TableStatistics(
        table=Table(uri, handle),
        version=handle.version(),
        last_commit_ms=int(history[0].get("timestamp", -1)) if history else -1,
        files=added.num_rows,
        size_bytes=pc.sum(sizes).as_py() or 0,
        small_files=pc.sum(pc.less(sizes, file_bytes // _SMALL)).as_py() or 0,
        rows=None if counts.null_count else pc.sum(counts).as_py() or 0,
        cost=cost_of(history),
    )


def cost_of(history: Sequence[Mapping[str, Any]]) -> RunCost:
    """Return the cost of the commits with these infos, of those that brought records."""
    runs = [noted for noted in history if _READ in noted]
    return RunCost(
        runs=len(runs),
        bytes_read=sum(_number(run, _READ) for run in runs),
        bytes_written=sum(_number(run, _WRITTEN) for run in runs),
        seconds=sum(float(run.get(_SECONDS, 0)) for run in runs),
        gets=sum(_number(run, _GETS) for run in runs),
        puts=sum(_number(run, _PUTS) for run in runs),
    )


def _number(run: Mapping[str, Any], name: str) -> int:
    return int(run.get(name, 0))
