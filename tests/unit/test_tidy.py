"""The tree keeps its own rules: sizes, names that must not be named, nothing left lying about."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import TARGETS

ROOT = Path(__file__).resolve().parents[2]
# A module holds one noun, whole, as long as that reads best; the limits notice what has outgrown
# its reader.
MODULE_LINES_MAX = 1_200
FUNCTION_LINES_MAX = 80
# A file of tests is a list, and a test may tell a story.
TEST_MODULE_LINES_MAX = 800
TEST_FUNCTION_LINES_MAX = 80
FILE_BYTES_MAX = 1_000_000

# Modules and functions over the limit, with their present length: it may shrink, not grow.
LONG_MODULES: dict[str, int] = {}
LONG_FUNCTIONS = {
    # Every part of a node, made in order: a list, not a story.
    "broker/node.py:_build": 189,
    "tests/simulation/cluster/broker.py:__init__": 134,
    # Compiled kernels: one loop over the bytes of a range, where a call per field would cost.
    "storage/format/record_kernel.py:parse_records": 110,
    "lake/tables/values/json_kernel.py:_decode": 145,
    "lake/tables/values/protobuf_kernel.py:_decode": 125,
}

NOTE = "a note to oneself"
# Patterns in which one letter stands in brackets do not match themselves.
BANNED_TEXT = {
    "a package registry's host": r"\b(?:[p]ypi\.org|files\.[p]ythonhosted\.org|"
    r"registry\.[n]pmjs\.org|repo1?\.[m]aven\.(?:org|apache\.org)|crates\.[i]o|proxy\.[g]olang\.org)",
    # What Terraform's hosts have under /opt is theirs, not this machine's.
    "a path of one machine": r"(?<![\w.~}])/(?:[r]oot|[w]ork|[h]ome/\w+|tmp/[l]h|"
    r"[o]pt/(?!(?:airflow|lakehead)/)\w+)/",
    "a merge left unfinished": r"^(?:<{7}|>{7}) ",
    NOTE: r"\b(?:TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b",
}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".svg", ".yml", ".yaml", ".json", ".cfg", ""}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that belongs to the project."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("not a git checkout")
    return tuple(p for line in found.stdout.splitlines() if (p := ROOT / line).is_file())


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules() -> Iterator[Path]:
    return (path for path in tracked() if path.suffix == ".py")


@cache
def functions() -> dict[str, int]:
    return {key: length for path in modules() for key, length in functions_of(path)}


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            docstring = ast.get_docstring(node, clean=False) or ""
            length = node.end_lineno - node.lineno + 1 - docstring.count("\n")
            yield f"{name(path)}:{node.name}", length


def over(lengths: dict[str, int], limits: tuple[int, int], allowed: dict[str, int]) -> list[str]:
    return [
        f"{key}: {n}"
        for key, n in lengths.items()
        if n > max(limits[key.startswith("tests/")], allowed.get(key, 0))
    ]


def test_modules_are_short() -> None:
    lengths = {name(path): path.read_text().count("\n") for path in modules()}
    assert over(lengths, (MODULE_LINES_MAX, TEST_MODULE_LINES_MAX), LONG_MODULES) == []


def test_functions_are_short() -> None:
    limits = (FUNCTION_LINES_MAX, TEST_FUNCTION_LINES_MAX)
    assert over(functions(), limits, LONG_FUNCTIONS) == []


def test_exceptions_to_the_limits_are_still_needed() -> None:
    lines = {name(path): path.read_text().count("\n") for path in modules()}
    bodies = functions()
    assert [key for key in LONG_MODULES if lines.get(key, 0) <= MODULE_LINES_MAX] == []
    assert [key for key in LONG_FUNCTIONS if bodies.get(key, 0) <= FUNCTION_LINES_MAX] == []


@pytest.mark.parametrize("what", BANNED_TEXT)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(BANNED_TEXT[what], re.MULTILINE)
    found = {}
    for path in tracked():
        if what == NOTE and name(path).startswith("tests/conformance/results/"):
            continue  # foreign suites print notes of their own
        if path.suffix in TEXT_SUFFIXES and not name(path).startswith("requirements/"):
            matches = pattern.findall(path.read_text(errors="replace"))
            found.update({name(path): matches} if matches else {})
    assert found == {}


# Where the name to import is not that of the distribution.
DISTRIBUTIONS = {
    "IPython": "ipython",
    "airflow": "apache-airflow",
    "botocore": "boto3",
    "confluent_kafka": "confluent-kafka",
    "delta": "delta-spark",
    "fuse": "fusepy",
    "google": "protobuf",
    "kafka": "kafka-python",
    "llvmlite": "numba",
    "opentelemetry": "opentelemetry-proto",
    "re2": "google-re2",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
    "yaml": "pyyaml",
}


def declared(*extras: str) -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = settings["project"], settings["dependency-groups"]
    optional = project["optional-dependencies"] | groups
    wanted = [*project["dependencies"], *(one for extra in extras for one in optional[extra])]
    return {re.split(r"[\[<>=]", one)[0] for one in wanted}


def imported(folder: str) -> set[str]:
    ours = {path.name for path in ROOT.iterdir() if path.is_dir()}
    names: set[str] = set()
    for path in modules():
        if not name(path).startswith(f"{folder}/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return {DISTRIBUTIONS.get(n, n) for n in names - ours - sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("storage", ("compaction", "s3")),
        # The demo, in broker/cli, and the fixtures of pytest are why this is not base alone.
        ("broker", ("client", "compaction", "lake", "s3", "testing")),
        ("lake", ("compaction", "iceberg", "lake", "notebook", "s3")),
        ("tests", ("airflow", "client", "compaction", "dev", "emulator", "iceberg", "lake", "s3")),
        ("bench", ("client", "compaction", "dev", "lake", "plots", "s3")),
    ],
)
def test_what_is_imported_is_declared(folder: str, extras: tuple[str, ...]) -> None:
    # pytest-asyncio and the like give the import name an underscore.
    found = {n.replace("_", "-") for n in imported(folder)}
    assert sorted(found - declared(*extras)) == []


def test_requirements_are_pinned_by_hash_and_name_no_place() -> None:
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert [file.stem for file in files] == [
        *("base", "build", "checkov", "deployment", "dev", "emulator", "lake", "plots", "site"),
    ]
    for file in files:
        text = file.read_text()
        assert re.findall(r"https?:|file:|find-links|index-url|@ ", text) == []
        pins = re.split(r"\n(?=[a-z0-9])", text)[1:]
        assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in modules() if name(path).startswith("tests/")]
    twice = {n for n in names if names.count(n) > 1} - {"__init__.py", "__main__.py", "conftest.py"}
    assert twice == set()


def test_no_file_is_big() -> None:
    assert [name(path) for path in tracked() if path.stat().st_size > FILE_BYTES_MAX] == []


def test_every_package_has_a_docstring() -> None:
    silent = [
        name(path)
        for path in modules()
        if path.name == "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_each_slow_test_has_a_target_of_the_makefile() -> None:
    """Of its module or its folder, so that the reason for which it is skipped can be followed."""
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    assert set(TARGETS.values()) <= targets
    slow = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"\bmark\.slow\b", path.read_text())
    ]
    assert slow
    for path in slow:
        folder = path.relative_to(ROOT / "tests").parts[0]
        assert path.stem in TARGETS or folder in TARGETS, path
