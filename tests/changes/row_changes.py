"""A random workload of a database: the same transactions for a seed, whoever runs them.

Transactions have inserts, updates of columns and of keys, deletes, rows of keys that were deleted
before, and nulls; some are rolled back, some to a savepoint. What a crash interrupts is run again:
each transaction notes its number in the table `progress`.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.changes.tables import BOOLEAN, BYTEA, DATE, DOUBLE, JSONB, TABLES, ZONED, Kind, Table

SCHEMA = (
    "CREATE TABLE progress (n bigint); INSERT INTO progress VALUES (0);"
    "CREATE TABLE connector (is_read boolean); INSERT INTO connector VALUES (false);"
    + "".join(table.ddl for table in TABLES)
)
_TEXTS = ("", "plain", "O'Hara", 'say "x"', "back\\slash", "zwölf Ünïcode ✓ 🐘", "two\nlines", "\t")
_LONG = "(SELECT string_agg(md5((x * {0})::text), '') FROM generate_series(1, 120) x)"
"""Some 4 kB that do not compress: kept beside the row, and not in the log while it stays."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction as SQL; `changes` rows are changed by it."""

    number: int
    sql: str
    changes: int


class _Rows:
    """The keys that a table has now, and that it had."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.live: list[str] = []
        self.gone: list[str] = []
        self._next = 0

    def new_key(self, rng: random.Random) -> str:
        """A key that is not there: one never used, or one that was deleted."""
        if self.gone and rng.random() < 0.3:
            return self.gone.pop(rng.randrange(len(self.gone)))
        self._next += 1
        if self.table.key_columns == 2:
            return f"'{rng.choice('NESW')}', {self._next}"
        return f"'w{self._next}'" if self.table.name == "words" else str(self._next)

    def take(self, rng: random.Random) -> str:
        """Remove a key that is there."""
        place = rng.randrange(len(self.live))
        self.live[place], self.live[-1] = self.live[-1], self.live[place]
        return self.live.pop()


class Workload:
    """Transactions that change `rows` rows in all."""

    def __init__(self, seed: int, rows: int) -> None:
        self._rng = random.Random(seed)
        self._wanted = rows
        self._rows = [_Rows(table) for table in TABLES]

    def transactions(self) -> Iterator[Transaction]:
        done = number = 0
        while done < self._wanted:
            number += 1
            changes, statements = 0, [f"UPDATE progress SET n = {number}"]
            is_undone = self._rng.random() < 0.03
            for _ in range(self._rng.choice((1, 1, 2, 3, 5))):
                rows = self._rng.choice(self._rows)
                if is_undone:
                    statements.append(self._undone(rows))
                else:
                    count, made = self._statements(rows, min(self._wanted - done - changes, 40))
                    changes += count
                    statements += made
            done += changes
            end = "ROLLBACK" if is_undone else "COMMIT"
            yield Transaction(number, f"BEGIN;{';'.join(statements)};{end};\n", changes)

    def _statements(self, rows: _Rows, most: int) -> tuple[int, list[str]]:
        """Statements that change up to `most` rows, and how many they change."""
        rng = self._rng
        if most <= 0:
            return 0, []
        chance, count = rng.random(), rng.randint(1, most)
        if len(rows.live) < 50 or chance < 0.35:
            keys = [rows.new_key(rng) for _ in range(count)]
            rows.live += keys
            return count, [self._insert(rows.table, keys)]
        count = min(count, len(rows.live))
        if chance < 0.80:
            keys = rng.sample(rows.live, count)
            saved = ["SAVEPOINT s", self._undone(rows), "ROLLBACK TO s"] * (chance < 0.37)
            return count, [*saved, self._update(rows.table, keys)]
        if chance < 0.87:
            old, new = rows.take(rng), rows.new_key(rng)
            rows.gone.append(old)
            rows.live.append(new)
            names = ", ".join(rows.table.keys)
            return 1, [f"UPDATE {rows.table.name} SET ({names}) = ROW({new}) {_where(rows, [old])}"]
        keys = [rows.take(rng) for _ in range(max(1, count // 2))]
        rows.gone += keys
        return len(keys), [f"DELETE FROM {rows.table.name} {_where(rows, keys)}"]

    def _undone(self, rows: _Rows) -> str:
        """A change that is rolled back."""
        keys = rows.live[:3]
        return self._update(rows.table, keys) if keys else "SELECT 1"

    def _insert(self, table: Table, keys: list[str]) -> str:
        kinds = [*table.columns.values()][table.key_columns :]
        lines = (", ".join((key, *(self._literal(kind) for kind in kinds))) for key in keys)
        return f"INSERT INTO {table.name} VALUES ({'), ('.join(lines)})"

    def _update(self, table: Table, keys: list[str]) -> str:
        names = self._rng.sample([*table.columns][table.key_columns :], self._rng.randint(1, 3))
        sets = (f"{name} = {self._literal(table.columns[name])}" for name in names)
        named = ", ".join(f"({key})" for key in keys)
        keyed = ", ".join(table.keys)
        return f"UPDATE {table.name} SET {', '.join(sets)} WHERE ({keyed}) IN ({named})"

    def _literal(self, kind: Kind) -> str:
        rng = self._rng
        if rng.random() < 0.1:
            return "NULL"
        if kind.sql.startswith("numeric"):
            digits = rng.randint(0, 10**10) * rng.choice((1, -1, 0))
            return f"{digits}e-{rng.choice((0, 2, 6)) if '30' in kind.sql else 2}"
        if kind is BOOLEAN:
            return rng.choice(("true", "false"))
        if kind is DOUBLE:
            return repr(rng.uniform(-1e6, 1e6) * rng.choice((1.0, 1e-9, 1e200)))
        if kind is DATE:
            return f"date '1890-01-01' + {rng.randrange(100_000)}"
        if kind is ZONED:
            microseconds = rng.randrange(10**6) * rng.choice((0, 1))
            return (
                f"timestamptz '1899-12-31 23:59:59+02' + interval '{rng.randrange(10**10)} s "
                f"{microseconds} us'"
            )
        if kind is BYTEA:
            return f"'\\x{rng.randbytes(rng.randrange(20)).hex()}'"
        if kind is JSONB:
            return _quoted(json.dumps({"t": rng.choice(_TEXTS), "n": [rng.random(), None, {}]}))
        if kind.sql in {"bigint", "integer"}:
            return str(rng.randrange(-(2**31), 2**31))
        if rng.random() < 0.01:
            return _LONG.format(rng.randrange(10**6))
        return _quoted(f"{rng.choice(_TEXTS)}{rng.randrange(1000)}")


def _where(rows: _Rows, keys: list[str]) -> str:
    named = ", ".join(f"({key})" for key in keys)
    return f"WHERE ({', '.join(rows.table.keys)}) IN ({named})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
