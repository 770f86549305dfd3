"""Clients that are programs: built once into the cache folder, run once for each topic.

`LAKEHEAD_CACHE` moves the folder. A client that this machine cannot have raises CannotBeHad, whose
message says what is missing.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.apache_kafka.jars import jars_directory
from bench.apache_kafka.tools import QUICK_START
from bench.maven import MissingTool
from lakehead.lake.spark import cache_folder
from tests.support.foreign_clients import CODECS, ITEMS, ForeignClient, Item

FRANZ_GO = "github.com/twmb/franz-go@v1.22.2"
NPM_PACKAGES = ("kafkajs@2.2.4", "kafkajs-snappy@1.1.0", "@bokuweb/zstd-wasm@0.0.27")
KAFKAJS_CODECS = ("none", "gzip", "snappy", "zstd")
"""No lz4: what npm has in plain JavaScript (lz4js) writes frames of linked blocks, which Kafka's
own client refuses, and reads those of others as nothing.
"""
INSTALL_SECONDS_MAX = 600
RUN_SECONDS_MAX = 60
_SOURCES = Path(__file__).parent


class CannotBeHad(Exception):
    """A client cannot be installed here. The message is one line for the user."""


def program_folder(name: str) -> Path:
    """Return the folder of a client in the cache."""
    folder = cache_folder() / "clients" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def install(folder: Path, *command: str) -> None:
    """Run a command of an installation in a folder, or raise CannotBeHad."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise CannotBeHad(str(error)) from error
    if done.returncode != 0:
        raise CannotBeHad(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}")


def _run(command: Sequence[str], stdin: str = "") -> str:
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _as_json(item: Item) -> str:
    headers = [[name, _base64(value)] for name, value in item.headers]
    fields = {"key": _base64(item.key), "value": _base64(item.value)}
    return json.dumps(fields | {"headers": headers, "timestamp": item.timestamp})


def _from_json(line: str) -> Item:
    fields = json.loads(line)
    headers = tuple((name, base64.b64decode(value)) for name, value in fields["headers"])
    return Item(_bytes(fields["key"]), _bytes(fields["value"]), headers, fields["timestamp"])


def _word(data: bytes | None) -> str:
    return "-" if data is None else base64.b64encode(data).decode() or "="


def _unword(word: str) -> bytes | None:
    return None if word == "-" else base64.b64decode(word.strip("=") and word)


def _as_words(item: Item) -> str:
    headers = (_word(part) for name, value in item.headers for part in (name.encode(), value))
    return " ".join([str(item.timestamp), _word(item.key), _word(item.value), *headers])


def _from_words(line: str) -> Item:
    timestamp, key, value, *rest = line.split()
    parts = [_unword(word) or b"" for word in rest]
    headers = zip((name.decode() for name in parts[::2]), parts[1::2], strict=True)
    return Item(_unword(key), _unword(value), tuple(headers), int(timestamp))


def _program(
    name: str,
    command: Sequence[str],
    encode: Callable[[Item], str],
    decode: Callable[[str], Item],
    codecs: tuple[str, ...] = CODECS,
) -> ForeignClient:
    text = "".join(f"{encode(item)}\n" for item in ITEMS)

    def write(bootstrap: str, topic: str, codec: str) -> None:
        _run([*command, "write", bootstrap, topic, codec], text)

    def read(bootstrap: str, topic: str) -> list[Item]:
        lines = _run([*command, "read", bootstrap, topic, str(len(ITEMS))])
        return [decode(line) for line in lines.splitlines()]

    return ForeignClient(name=name, write=write, read=read, codecs=codecs)


def kafkajs() -> ForeignClient:
    """kafkajs on Node, with npm's packages for the codecs it lacks."""
    folder = program_folder("kafkajs")
    if not (folder / "node_modules" / "kafkajs").is_dir():
        install(folder, "npm", "install", "--no-audit", "--no-fund", *NPM_PACKAGES)
    shutil.copy(_SOURCES / "kafkajs_client.js", folder / "client.js")
    command = ["node", str(folder / "client.js")]
    return _program("kafkajs", command, _as_json, _from_json, KAFKAJS_CODECS)


def franz_go() -> ForeignClient:
    """franz-go, built with Go."""
    folder = program_folder("franz-go")
    source = (_SOURCES / "franz_client.go").read_text()
    program = folder / "client"
    if not program.exists() or (folder / "main.go").read_text() != source:
        (folder / "main.go").write_text(source)
        if not (folder / "go.mod").exists():
            install(folder, "go", "mod", "init", "client")
        module, _, version = FRANZ_GO.partition("@")
        install(folder, "go", "get", f"{module}/pkg/kgo@{version}")
        install(folder, "go", "build", "-o", str(program))
    return _program("franz-go", [str(program)], _as_json, _from_json)


def java() -> ForeignClient:
    """Kafka's own Java client, compiled against the jars that the benchmark fetches."""
    folder = program_folder("java")
    try:
        jars = f"{jars_directory()}/*"
    except MissingTool as error:
        raise CannotBeHad(str(error)) from error
    install(folder, "javac", "-cp", jars, "-d", str(folder), str(_SOURCES / "JavaClient.java"))
    command = ["java", *QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return _program(
        "java", [*command, "-cp", f"{folder}:{jars}", "JavaClient"], _as_words, _from_words
    )


def kcat() -> ForeignClient:
    """kcat, which the system's packages have, on an old librdkafka."""
    if shutil.which("kcat") is None:
        raise CannotBeHad("apt-get install kcat")
    known = _run(["kcat", "-X", "list"])
    codecs = tuple(codec for codec in CODECS if codec == "none" or codec in _features(known))
    pairs = ((item.key or b"", item.value or b"") for item in ITEMS)
    text = "".join(f"{key.decode()}\t{value.decode()}\n" for key, value in pairs)

    def write(bootstrap: str, topic: str, codec: str) -> None:
        place = ["-b", bootstrap, "-t", topic, "-p", "0"]
        _run(["kcat", "-P", "-q", *place, "-z", codec, "-K", "\t"], text)

    def read(bootstrap: str, topic: str) -> list[Item]:
        place = ["-b", bootstrap, "-t", topic, "-p", "0"]
        lines = _run(["kcat", "-C", "-q", "-J", *place, "-o", "beginning", "-c", str(len(ITEMS))])
        return [_from_kcat(json.loads(line)) for line in lines.splitlines()]

    return ForeignClient(name="kcat", write=write, read=read, codecs=codecs, exact=False)


def _features(known: str) -> frozenset[str]:
    """Return what the library of a kcat was built with, from all of its settings."""
    (line,) = (line for line in known.splitlines() if line.startswith("builtin.features"))
    return frozenset(line.split("|")[3].replace(" ", "").split(","))


def _from_kcat(fields: Any) -> Item:
    def encoded(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    parts = [text.encode() for text in fields.get("headers", ())]
    headers = zip((name.decode() for name in parts[::2]), parts[1::2], strict=True)
    return Item(encoded(fields["key"]), encoded(fields["payload"]), tuple(headers), fields["ts"])


MAKERS: dict[str, Callable[[], ForeignClient]] = {
    "kafkajs": kafkajs,
    "franz-go": franz_go,
    "java": java,
    "kcat": kcat,
}
