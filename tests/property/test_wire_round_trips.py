"""Every message that the broker serves, against kafka-python's and Kafka's own codecs.

What our side writes they read, each field the same, and what they write again is the same bytes,
which our side reads as the message it was. A request cut short is an error and nothing else.
`ROUND_TRIPS` sets how many messages of each kind are tried.
"""

import dataclasses
import inspect
import io
import os
import pkgutil
import random
import subprocess
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from bench.apache_kafka.jars import jars_directory
from bench.apache_kafka.tools import QUICK_START
from lakehead.broker import api
from lakehead.broker.protocol import fetch, produce
from lakehead.broker.protocol.api import API_VERSIONS_KEY, schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.encode import encode
from lakehead.broker.protocol.errors import MalformedFrame
from tests.support.kafka_tools import require_kafka_tools
from tests.support.message_values import messages

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    import kafka.protocol
    from kafka.protocol.api_message import ApiMessage

REGISTRY = api.registry()
PROGRAM = Path(__file__).parent.parent / "support" / "WireEcho.java"


class Kind(NamedTuple):
    """One message: an API at a version, its request or its response."""

    key: int
    version: int
    is_request: bool

    @property
    def cls(self) -> Any:
        message = schema(self.key, self.version)
        return message.request_class if self.is_request else message.response_class


KINDS = tuple(
    Kind(served.key, version, is_request)
    for served in REGISTRY.apis()
    for version in range(served.versions[0], served.versions[1] + 1)
    for is_request in (True, False)
)
OPERATIONS_UNKNOWN = -(2**31)
APIS = sorted({kind.key for kind in KINDS})


def kinds(key: int) -> list[Kind]:
    return [kind for kind in KINDS if kind.key == key]


def is_message(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, ApiMessage) and thing is not ApiMessage


@cache
def foreign_classes() -> dict[tuple[int, bool], Any]:
    """kafka-python's classes by API key and whether they are requests."""
    found: dict[tuple[int, bool], Any] = {}
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" in module.name or "generate" in module.name:
            continue
        classes: list[Any] = [c for c in vars(import_module(module.name)).values() if is_message(c)]
        found |= {(cls.API_KEY, cls.is_request()): cls for cls in classes}
    return found


def encoded(message: Any) -> bytes:
    """Return the bytes of a message by kio's writer."""
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def assert_same(ours: Any, theirs: Any, path: str = "") -> None:
    """Field by field, by name."""
    if dataclasses.is_dataclass(ours):
        for field in dataclasses.fields(ours):
            name = their_name(field.name, theirs)
            assert_same(getattr(ours, field.name), getattr(theirs, name), f"{path}.{name}")
    elif isinstance(ours, tuple):
        assert len(ours) == len(theirs), path
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{path}[{index}]")
    elif path.endswith(".authorized_operations"):  # a set to them, None for "not asked"
        operations = {bit for bit in range(32) if ours >> bit & 1}
        assert operations >= theirs if theirs is not None else ours == OPERATIONS_UNKNOWN, path
    else:
        assert number(ours, theirs) == theirs, path


def their_name(name: str, theirs: Any) -> str:
    """kio's durations and instants have lost their unit, kafka-python shortens two names."""
    names = (name, f"{name}_ms", "authorized_operations")
    return next(each for each in names if each in theirs.fields)


def number(ours: Any, theirs: Any) -> Any:
    """A field's value as it stands in the bytes."""
    if isinstance(ours, timedelta):
        return ours // timedelta(milliseconds=1)
    if isinstance(ours, datetime):
        return round(ours.timestamp() * 1000)
    return -1 if ours is None and isinstance(theirs, int) else ours


ROUND_TRIPS = settings(
    max_examples=int(os.environ.get("ROUND_TRIPS", "2")),
    deadline=None,
    phases=[Phase.generate],  # of failures only the bytes matter, and shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)


def try_messages(kind: Kind, attempt: Callable[[Kind, Any], None]) -> None:
    @ROUND_TRIPS
    @given(message=messages(kind.cls))
    def run(message: Any) -> None:
        attempt(kind, message)

    run()


def read_by_kafka_python(kind: Kind, message: Any, body: bytes) -> bytes:
    """Compare what kafka-python reads; return what it writes again."""
    theirs = foreign_classes()[kind.key, kind.is_request].decode(body, version=kind.version)
    assert_same(message, theirs)
    theirs.with_header()
    again: bytes = theirs.encode()
    return again


@pytest.fixture(scope="module")
def kafka_echo() -> Iterator[Callable[[Kind, bytes], bytes]]:
    """Kafka's own classes, in a JVM: read bytes, write them again."""
    require_kafka_tools()
    program = ["java", *QUICK_START, "-cp", f"{jars_directory()}/*", str(PROGRAM)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def echo(kind: Kind, body: bytes) -> bytes:
            side = "request" if kind.is_request else "response"
            questions.write(f"{kind.key} {kind.version} {side} {body.hex()}\n")
            questions.flush()
            answer = answers.readline().strip()
            assert not answer.startswith("error"), f"{kind}: {answer}"
            return bytes.fromhex(answer)

        yield echo
        questions.close()
        process.wait(10)


@pytest.mark.parametrize("key", APIS)
def test_others_read_what_we_write_and_we_read_what_they_write(
    key: int, kafka_echo: Callable[[Kind, bytes], bytes]
) -> None:
    def try_one(kind: Kind, message: Any) -> None:
        if key == API_VERSIONS_KEY and not kind.is_request:
            # to kafka-python any refusal is of version 0, which is so for UNSUPPORTED_VERSION
            message = dataclasses.replace(message, error_code=ErrorCode.none)
        body = encoded(message)
        assert encode(message) == body
        assert decode(kind.cls, memoryview(body)) == message
        assert kafka_echo(kind, body) == body
        if (key, True) in foreign_classes():
            assert read_by_kafka_python(kind, message, body) == body

    for kind in KINDS:
        if kind.key == key:
            try_messages(kind, try_one)


def parsed(kind: Kind, body: bytes) -> object:
    """A request as the broker reads it."""
    by_hand = {0: produce.parse, 1: fetch.parse}.get(kind.key)
    if by_hand is None:
        return decode(kind.cls, memoryview(body))
    return by_hand(memoryview(body), 0, kind.version)


@pytest.mark.parametrize("key", APIS)
def test_a_request_that_is_cut_or_damaged_is_a_clean_error(key: int) -> None:
    def try_one(kind: Kind, message: Any) -> None:
        body = encoded(message)
        parsed(kind, body)
        for size in range(len(body)):
            with pytest.raises(MalformedFrame):
                parsed(kind, body[:size])
        rng = random.Random(body)
        for position in range(len(body)):
            damaged = bytearray(body)
            damaged[position] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, damaged[position] ^ 1))
            try:
                parsed(kind, bytes(damaged))
            except MalformedFrame:
                pass

    for kind in KINDS:
        if kind.key == key and kind.is_request:
            try_messages(kind, try_one)
