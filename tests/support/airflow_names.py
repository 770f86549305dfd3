"""Imports of Airflow's names, and a stored list of the names that each of its versions has.

`python -m tests.support.airflow_names` writes the names of the Airflow that it runs with into the
list: once with each `build/airflow-VERSION/bin/python` (make airflow-versions), and with .venv's.
"""

import ast
import importlib
import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests/airflow/names.json"
FOLDERS = ("connectors/airflow", "dags")
OLDEST = (3, 0)
OPTIONAL = ("airflow.providers.apache.", "airflow.providers.openlineage.")
"""Providers that are used where they are installed."""
_COMPAT_OPTIONAL = "airflow.providers.common.compat.openlineage"

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """A name that a module imports when Airflow is of version `since` or newer, up to `below`."""

    path: str
    line: int
    module: str
    name: str
    since: Version = OLDEST
    below: Version = (99,)

    def is_needed(self, version: Version) -> bool:
        return self.since <= version[:2] < self.below


def imports_of(path: Path) -> Iterator[Imported]:
    """The names of Airflow that a file imports, but for those that only a type checker sees and
    those whose absence is handled.
    """
    tree = ast.parse(path.read_text())
    shown = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    yield from _imports(tree.body, shown, OLDEST, (99,))


def _imports(
    body: Iterable[ast.stmt], path: str, since: Version, below: Version
) -> Iterator[Imported]:
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "airflow":
            module = str(node.module)
            if not module.startswith((*OPTIONAL, _COMPAT_OPTIONAL)):
                for one in node.names:
                    yield Imported(path, node.lineno, module, one.name, since, below)
        elif isinstance(node, ast.If):
            yield from _of_condition(node, path, since, below)
        elif not isinstance(node, ast.Try):
            for part in ("body", "orelse"):
                yield from _imports(getattr(node, part, ()), path, since, below)


def _of_condition(node: ast.If, path: str, since: Version, below: Version) -> Iterator[Imported]:
    test = ast.unparse(node.test)
    if test == "TYPE_CHECKING":
        yield from _imports(node.orelse, path, since, below)
        return
    version = _version(test)
    yield from _imports(node.body, path, max(since, version), below)
    yield from _imports(node.orelse, path, since, min(below, version) if version else below)


def _version(test: str) -> Version:
    """The version of a test such as `AIRFLOW >= (3, 1)`; none of another test."""
    name, _, rest = test.partition(" >= ")
    return tuple(ast.literal_eval(rest)) if name == "AIRFLOW" else ()


def our_imports() -> list[Imported]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [one for path in files for one in imports_of(path)]


def names_here(modules: Iterable[str]) -> dict[str, list[str]]:
    """The names that modules have in this process; a module that is not there has none."""
    found = {}
    for name in sorted(modules):
        try:
            with warnings.catch_warnings(action="ignore"):
                module = importlib.import_module(name)
        except Exception:  # a provider's own error for an Airflow that is too old, for one
            continue
        known = {*dir(module), *getattr(module, "__all__", ())}
        known |= {*getattr(module, "_IMPORT_MAP", ()), *getattr(module, "_RENAME_MAP", ())}
        found[name] = sorted(
            one for one in known if not one.startswith("_") or one == "__version__"
        )
    return found


def stored() -> dict[str, dict[str, list[str]]]:
    names: dict[str, dict[str, list[str]]] = json.loads(STORED.read_text())
    return names


def main() -> None:
    from airflow import __version__

    lists = stored() if STORED.exists() else {}
    lists[__version__] = names_here({one.module for one in our_imports()})
    lines = [
        f"{json.dumps(version)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(module)}: {json.dumps(names)}" for module, names in one.items()
        )
        + "\n}"
        for version, one in sorted(lists.items())
    ]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
