"""The base install: what it brings, how large it is, and what a broker does without the extras."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bench.lakehead_server import lakehead_server
from lakehead.broker.cli.extras import EXTRAS
from tests.support.broker_process import HASTY

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SIZE_MAX = 100_000_000
OWN_SIZE_MAX = 18_000_000
"""Of Lakehead's own files with bytecode: they are not installed as files here."""


def distributions_of(requirements: list[str]) -> Iterator[metadata.Distribution]:
    """Yield what requirements bring, by what the installed packages require themselves."""
    waiting, seen = [Requirement(one) for one in requirements], set[str]()
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower().replace("_", "-")
        extras = requirement.extras or {""}
        marker = requirement.marker
        if name in seen or (marker and not any(marker.evaluate({"extra": x}) for x in extras)):
            continue
        seen.add(name)
        found = metadata.distribution(name)
        yield found
        for text in found.requires or []:
            inner = Requirement(text)
            if not inner.marker or any(inner.marker.evaluate({"extra": x}) for x in extras):
                waiting.append(Requirement(text.partition(";")[0]))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with links to the packages of the base install, and to nothing else."""
    folder = tmp_path_factory.mktemp("packages")
    for one in distributions_of(PROJECT["dependencies"]):
        for top in {file.parts[0] for file in one.files or () if file.parts[0] != ".."}:
            if not (folder / top).exists() and top != "__pycache__":
                (folder / top).symlink_to(Path(str(one.locate_file(top))))
    return folder


def test_the_base_install_is_below_100_mb() -> None:
    sizes = {
        one.name: sum(
            Path(str(file.locate())).stat().st_size
            for file in one.files or ()
            if Path(str(file.locate())).is_file()
        )
        for one in distributions_of(PROJECT["dependencies"])
    }
    assert OWN_SIZE_MAX + sum(sizes.values()) < SIZE_MAX, sorted(sizes.items(), key=lambda x: -x[1])
    extra = {package for names in EXTRAS.values() for package in names}
    assert not extra & {name.lower().replace("-", "_") for name in sizes}


def command(packages: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-m", "lakehead", *arguments],
        cwd=folder,
        env={"PYTHONPATH": f"{packages}:{ROOT}", "HOME": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("s3", ("start", "--store", "s3://bucket/prefix", "--wal", "object:", "--port", "0")),
        ("client", ("topics", "create", "orders")),
    ],
)
def test_a_command_that_needs_an_extra_names_it_in_one_line(
    packages: Path, tmp_path: Path, extra: str, arguments: tuple[str, ...]
) -> None:
    done = command(packages, tmp_path, *arguments)
    assert done.returncode == 1
    pattern = rf"lakehead: \w+ is not installed; get it with: pip install 'lakehead\[{extra}\]'\n"
    assert re.fullmatch(pattern, done.stderr), done.stderr


def test_a_broker_of_the_base_install_serves_and_is_maintained(
    packages: Path, tmp_path: Path
) -> None:
    from confluent_kafka import Consumer, Producer

    environment = {"PYTHONPATH": f"{packages}:{ROOT}"}
    server = lakehead_server(tmp_path, *HASTY, under=("-S",), environment=environment)
    with server:
        address = f"127.0.0.1:{server.port}"
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = Producer({"bootstrap.servers": address, "compression.type": codec})
            for number in range(100):
                producer.produce("orders", f"{codec} {number}" * 10, key=str(number))
            assert producer.flush(60) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "g" * 300,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["orders"])
        found = 0
        while found < 500:
            messages = consumer.consume(500, 60)
            assert messages, server.log.read_text()
            found += sum(message.error() is None for message in messages)
        consumer.close()
    log = server.log.read_text()
    assert "Traceback" not in log, log
    done = command(packages, tmp_path, "maintain", "--path", str(tmp_path / "data/store"))
    assert done.returncode == 0, done.stderr
