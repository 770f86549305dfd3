"""A client that pip installs, on a secured listener.

Arguments: the client's name, a file of settings in JSON, and a topic. Commands of standard input,
each with one line of output: "send VALUE" and "read COUNT".
"""

import asyncio
import json
import logging
import ssl
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AsyncPartition
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from aiokafka.errors import KafkaError as AsyncKafkaError
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas the old way
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PythonPartition
    from kafka.errors import KafkaError as PythonKafkaError
    from kafka.net.sasl.oauth import AbstractTokenProvider

Login = Mapping[str, Any]


class Refused(Exception):
    """The client could not do it. The message is the client's, with the end of its log."""

    def __init__(self, error: BaseException | str) -> None:
        name = "" if isinstance(error, str) else f"{type(error).__name__}: "
        super().__init__(" ".join([f"{name}{error}", *dict.fromkeys(LOG.words)]))


class LastWarnings(logging.Handler):
    """Keeps the last warnings and errors: kafka-python and aiokafka put reasons there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.words: deque[str] = deque(maxlen=40)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.words.append(record.getMessage())


LOG = LastWarnings()


class SecuredClient(ABC):
    """A client with a producer that stays open."""

    def __init__(self, login: Login, topic: str) -> None:
        self.login = login
        self.topic = topic
        self.limit_s = float(login["limit_s"])

    @abstractmethod
    def send(self, value: bytes) -> None:
        """Write a record to partition 0, or raise Refused."""

    @abstractmethod
    def read(self, count: int) -> list[bytes]:
        """Return the values of the first records of partition 0, or raise Refused."""

    def token(self) -> str:
        """Return the token that is good now."""
        return Path(str(self.login["token_file"])).read_text()


class Confluent(SecuredClient):
    """confluent-kafka, which is librdkafka."""

    def __init__(self, login: Login, topic: str) -> None:
        super().__init__(login, topic)
        self._errors: list[str] = []
        self._producer = Producer(self._settings())

    def _settings(self) -> dict[str, Any]:
        login = self.login
        settings: dict[str, Any] = {
            "bootstrap.servers": login["bootstrap"],
            "security.protocol": login["protocol"],
            "log_level": 0,
            "error_cb": self._note,
        }
        if login["protocol"].endswith("SSL"):
            settings["ssl.ca.location"] = login["authority"]
            if login["certificate"]:
                settings["ssl.certificate.location"] = login["certificate"]
                settings["ssl.key.location"] = login["certificate"]
        if login["mechanism"]:
            settings["sasl.mechanism"] = login["mechanism"]
        if login["mechanism"] == "OAUTHBEARER":
            settings["oauth_cb"] = lambda _: (self.token(), time.time() + 300)
        elif login["mechanism"]:
            settings["sasl.username"] = login["user"]
            settings["sasl.password"] = login["password"]
        return settings

    def _note(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._errors.append(error.str())

    def send(self, value: bytes) -> None:
        reports: list[KafkaError | None] = []
        self._errors.clear()
        self._producer.produce(
            self.topic, value, partition=0, on_delivery=lambda error, _: reports.append(error)
        )
        end = time.monotonic() + self.limit_s
        while not reports and not self._errors and time.monotonic() < end:
            self._producer.poll(0.1)
        if not reports:
            self._producer.purge()
            raise Refused(" ".join(self._errors) or "timed out")
        if reports[0] is not None:
            raise Refused(reports[0].str())

    def read(self, count: int) -> list[bytes]:
        settings = self._settings() | {"group.id": "reader", "enable.auto.commit": False}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        values: list[bytes] = []
        end = time.monotonic() + self.limit_s
        while len(values) < count and time.monotonic() < end:
            found = (message.value() for message in consumer.consume(count, 0.5))
            values += [value for value in found if value is not None]
        consumer.close()
        return values


class KafkaPython(SecuredClient):
    """kafka-python."""

    _producer: KafkaProducer | None = None

    def _settings(self) -> dict[str, Any]:
        login, token = self.login, self.token

        class Token(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return token()

        settings: dict[str, Any] = {
            "bootstrap_servers": [login["bootstrap"]],
            "security_protocol": login["protocol"],
            "bootstrap_timeout_ms": int(self.limit_s * 1000),
        }
        if login["protocol"].endswith("SSL"):
            settings["ssl_cafile"] = login["authority"]
            if login["certificate"]:
                settings |= {"ssl_certfile": login["certificate"], "ssl_keyfile": None}
        if login["mechanism"]:
            settings["sasl_mechanism"] = login["mechanism"]
        if login["mechanism"] == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = Token()
        elif login["mechanism"]:
            settings["sasl_plain_username"] = login["user"]
            settings["sasl_plain_password"] = login["password"]
        return settings

    def send(self, value: bytes) -> None:
        try:
            if self._producer is None:
                self._producer = KafkaProducer(
                    **self._settings(), max_block_ms=int(self.limit_s * 1000)
                )
            self._producer.send(self.topic, value, partition=0).get(self.limit_s)
        except (PythonKafkaError, OSError) as error:
            raise Refused(error) from error

    def read(self, count: int) -> list[bytes]:
        values: list[bytes] = []
        with closing(KafkaConsumer(**self._settings(), auto_offset_reset="earliest")) as consumer:
            consumer.assign([PythonPartition(self.topic, 0)])
            end = time.monotonic() + self.limit_s
            while len(values) < count and time.monotonic() < end:
                for messages in consumer.poll(500).values():
                    values += [message.value for message in messages]
        return values


class AioKafka(SecuredClient):
    """aiokafka."""

    def __init__(self, login: Login, topic: str) -> None:
        super().__init__(login, topic)
        self._runner = asyncio.Runner()
        self._producer: AIOKafkaProducer | None = None

    def _settings(self) -> dict[str, Any]:
        login, token = self.login, self.token

        class Token(AsyncTokenProvider):  # type: ignore[misc]
            async def token(self) -> str:
                return token()

        settings: dict[str, Any] = {
            "bootstrap_servers": login["bootstrap"],
            "security_protocol": login["protocol"],
        }
        if login["protocol"].endswith("SSL"):
            context = ssl.create_default_context(cafile=login["authority"])
            if login["certificate"]:
                context.load_cert_chain(login["certificate"])
            settings["ssl_context"] = context
        if login["mechanism"]:
            settings["sasl_mechanism"] = login["mechanism"]
        if login["mechanism"] == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = Token()
        elif login["mechanism"]:
            settings["sasl_plain_username"] = login["user"]
            settings["sasl_plain_password"] = login["password"]
        return settings

    def send(self, value: bytes) -> None:
        self._runner.run(self._send(value))

    async def _send(self, value: bytes) -> None:
        try:
            async with asyncio.timeout(self.limit_s):
                if self._producer is None:
                    producer = AIOKafkaProducer(**self._settings())
                    try:
                        await producer.start()
                    except AsyncKafkaError:
                        await producer.stop()
                        raise
                    self._producer = producer
                await self._producer.send_and_wait(self.topic, value, partition=0)
        except (AsyncKafkaError, TimeoutError, OSError) as error:
            raise Refused(error) from error

    def read(self, count: int) -> list[bytes]:
        return self._runner.run(self._read(count))

    async def _read(self, count: int) -> list[bytes]:
        consumer = AIOKafkaConsumer(**self._settings(), auto_offset_reset="earliest")
        values: list[bytes] = []
        await consumer.start()
        try:
            consumer.assign([AsyncPartition(self.topic, 0)])
            async with asyncio.timeout(self.limit_s):
                while len(values) < count:
                    values.append((await consumer.getone()).value)
        finally:
            await consumer.stop()
        return values


CLIENTS: dict[str, Callable[[Login, str], SecuredClient]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}


def main() -> None:
    """Do what the lines of standard input say."""
    name, file, topic = sys.argv[1:]
    logging.getLogger().addHandler(LOG)
    client = CLIENTS[name](json.loads(Path(file).read_text()), topic)
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        try:
            if command == "send":
                client.send(value.encode())
                words = "ok"
            else:
                words = "ok " + b",".join(client.read(int(value))).decode()
        except Refused as error:
            words = " ".join(f"refused {error}".split())
            LOG.words.clear()
        print(words, flush=True)


if __name__ == "__main__":
    main()
