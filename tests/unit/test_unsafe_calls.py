"""No code runs bytes from elsewhere: no eval, no YAML with objects, no pickle of storage."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("broker", "storage", "lake", "connectors", "pyspark_lakehead", "dags")
BANNED = {
    *("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"),
    *("os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads"),
    *("shelve.open", "dill.loads", "cloudpickle.loads", "joblib.load", "numpy.load", "np.load"),
    *("xml.etree.ElementTree.parse", "tempfile.mktemp", "ssl._create_unverified_context"),
}
ALLOWED = {
    # Between a Spark driver and its own executors, over Spark's authenticated connections.
    "lake/jobs/spark_runner.py": {"pickle.loads"},
}
FLAGS = {"shell": True, "verify": False, "allow_pickle": True, "trust_remote_code": True}


def calls(source: str) -> Iterator[str]:
    """Return the banned calls of a module, by the name under which they are imported."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        written = ast.unparse(node.func)
        first, dot, rest = written.partition(".")
        name = names.get(first, first) + dot + rest
        if name in BANNED:
            yield name
        for keyword in node.keywords:
            value = keyword.value
            is_given = isinstance(value, ast.Constant) and keyword.arg in FLAGS
            if is_given and value.value is FLAGS[str(keyword.arg)]:  # type: ignore[attr-defined]
                yield f"{keyword.arg}={FLAGS[str(keyword.arg)]}"


def test_no_module_runs_code_from_elsewhere() -> None:
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            bad = set(calls(path.read_text())) - ALLOWED.get(name, set())
            if bad:
                found[name] = bad
    assert found == {}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("eval('1')", "eval"),
        ("import pickle as p\np.loads(b'')", "pickle.loads"),
        ("from pickle import loads as read\nread(b'')", "pickle.loads"),
        ("import yaml\nyaml.load(x)", "yaml.load"),
        ("import subprocess\nsubprocess.run('x', shell=True)", "shell=True"),
        ("import requests\nrequests.get('x', verify=False)", "verify=False"),
    ],
)
def test_an_unsafe_call_is_found_under_any_name(source: str, name: str) -> None:
    assert list(calls(source)) == [name]


def test_safe_calls_are_not_banned() -> None:
    source = "import re, yaml\nre.compile('x')\nyaml.safe_load('x')\nx.eval()\nrun(shell=False)"
    assert not list(calls(source))
