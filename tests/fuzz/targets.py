"""The readers that are fuzzed. Each takes any bytes and returns, or raises one of its own errors.

Where a checksum guards a structure, the bytes get a right one first: a fuzzer that ends at
checksums tries nothing else.
"""

import asyncio
import base64
import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from crc32c import crc32c

from lakehead.broker import api
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.partition.record_rules import RecordRules
from lakehead.broker.partition.validation import check_batch
from lakehead.broker.protocol import fetch, produce
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.decode import decode
from lakehead.broker.protocol.errors import KafkaError, MalformedFrame, UnsupportedVersion
from lakehead.broker.protocol.frame import read_header
from lakehead.broker.security.sasl.jaas import JaasError, parse_jaas
from lakehead.broker.security.sasl.jwks import JwksError, parse_jwks
from lakehead.broker.security.sasl.jwt import (
    KeyUnknown,
    validate_signed,
    validate_unsecured,
)
from lakehead.broker.security.sasl.oauthbearer import OAuthBearerServer
from lakehead.broker.security.sasl.outcome import SaslFailure
from lakehead.broker.security.sasl.plain import PlainServer, PlainUsers
from lakehead.broker.security.sasl.token_rules import TokenRules, UnsecuredRules
from lakehead.storage.config_providers import parse_properties
from lakehead.storage.encryption.chunks import TRAILER_SIZE
from lakehead.storage.errors import SettingsError, StorageError, UnsupportedFormat
from lakehead.storage.format.object_writer import ObjectWriter
from lakehead.storage.format.record_batch import HEADER_SIZE
from lakehead.storage.format.record_batch import read_header as read_batch_header
from lakehead.storage.format.records import inflate, iter_kafka_records
from lakehead.storage.format.stream_object import StreamInfo, parse_index
from lakehead.storage.metadata.entry import decode_entry, encode_entry
from lakehead.storage.metadata.records import ClusterCreated, Entry, NodeSecret
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.encrypted import EncryptedStore
from tests.fuzz import group_targets, log_targets, login_targets
from tests.property.test_connection_frames import received
from tests.property.test_wal_damage import read_back, volume
from tests.simulation.loop import simulate
from tests.support.encryption_keys import MemoryKeys
from tests.support.record_batches import CODECS, compress, seal_batch

INFLATED_MAX = 1 << 20
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A reader. `seeds` are valid inputs; `errors` are its own. An input may make it allocate
    `base_bytes`, and `bytes_each` for each byte of it.
    """

    read: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    errors: tuple[type[Exception], ...]
    base_bytes: int = 4 << 20
    bytes_each: int = 600


REGISTRY = api.registry()
REQUESTS = tuple(
    (served.key, version)
    for served in REGISTRY.apis()
    for version in range(served.versions[0], served.versions[1] + 1)
)


def read_frames(data: bytes) -> None:
    """A connection's bytes in pieces, as they may arrive."""
    pieces = [1 + len(data) % 7, 1 + len(data) % 700]
    asyncio.run(received(data, pieces))


def frame_seeds() -> list[bytes]:
    frames = [b"\0\3" + bytes(2) + b"\0\0\0\1\0\1a" + bytes(9), b"\0\x12\0\3\0\0\0\1\xff\xff\0"]
    return [b"".join(len(one).to_bytes(4, "big") + one for one in frames)]


def read_request(data: bytes) -> None:
    """A frame, as the dispatcher reads it: header, then the body by its API and version."""
    view = memoryview(data)
    header = read_header(view, REGISTRY)
    if header.key == 0:
        produce.parse(view, header.body, header.version)
    elif header.key == 1:
        fetch.parse(view, header.body, header.version)
    else:
        decode(header.schema.request_class, view, header.body)


_BODIES = (bytes(40), b"\0\0\0\1" * 10, b"\2" * 40, b"\2a\0\2" * 10, b"\0\1a\0\0\0\1" * 8)


def request_seeds() -> list[bytes]:
    seeds = []
    for key, version in REQUESTS:
        flexible = schema(key, version).flexible_request
        head = struct.pack(">hhih", key, version, 1, 1) + b"c" + (b"\0" if flexible else b"")
        seeds += [head + body for body in _BODIES]
    return seeds


RULES = RecordRules(batch_size_max=1 << 20)


def read_batch(data: bytes) -> None:
    """A batch of a producer: first byte the codec, then a body; then the bytes as they are."""
    codec = data[0] % 8 if data else 0
    sealed = seal_batch(
        data[1:], base_offset=0, last_offset_delta=0, record_count=1, attributes=codec
    )
    for batch in (memoryview(sealed), memoryview(data)):
        try:
            check_batch(batch, version=9, rules=RULES, now_ms=NOW_MS)
        except KafkaError:
            continue
        try:
            inflate(read_batch_header(batch), batch[HEADER_SIZE:], INFLATED_MAX)
            for _ in iter_kafka_records(batch):
                pass
        except ValueError:
            continue


def batch_seeds() -> list[bytes]:
    record = b"\x10\0\0\0\x02k\x02v\0"
    found = [bytes([number]) + compress(codec, record * 3) for number, codec in enumerate(CODECS)]
    return [*found, bytes([4]) + compress("zstd", bytes(500_000))]


_FOOTER = struct.Struct(">qiqiII")


def read_object(data: bytes) -> object:
    """An object of the store, with right checksums of its index and its extension."""
    changed = bytearray(data)
    if len(changed) >= 48:
        index_at, index_length = struct.unpack_from(">qi", changed, len(changed) - 48)
        at, length = struct.unpack_from(">qi", changed, len(changed) - 32)
        for place, start, size in ((20, index_at, index_length), (16, at, length)):
            if 0 <= start <= len(changed) and 0 <= size <= len(changed):
                crc = crc32c(bytes(changed[start : start + size]))
                struct.pack_into(">I", changed, len(changed) - place, crc)
    return parse_index("data/o", changed, len(changed))


def object_seeds() -> list[bytes]:
    writer = ObjectWriter(
        kind="sso", cluster_id="c", node_id=1, node_epoch=2, writer_id="w", created_ms=3
    )
    for stream_id in (3, 4):
        writer.begin_stream(StreamInfo(stream_id=stream_id, topic="t", partition=1, state=b"s"))
        writer.add(5, 0, 2, b"payload", 7)
    return [b"".join(bytes(piece) for piece in writer.finish().pieces)]


def read_entry(data: bytes) -> object:
    """An entry of the metadata log, with a right checksum."""
    rest = data.partition(b",")[2]
    return decode_entry("meta/log/1", b'{"crc32c":"%08x",' % crc32c(rest) + rest)


def entry_seeds() -> list[bytes]:
    records = (ClusterCreated(cluster_id="c"), NodeSecret(secret="ab" * 32))
    entry = Entry(version=2, writer="w", nonce="n", time_ms=1, records=records)
    return [encode_entry(entry)]


def read_volume(data: bytes) -> None:
    """A block write-ahead log of two nodes after writes that are not its own: place and bytes."""
    content = bytearray(volume()[0])
    at = 0
    while at + 4 <= len(data):
        place = int.from_bytes(data[at : at + 3], "big") % len(content)
        size = data[at + 3]
        piece = data[at + 4 : at + 4 + size]
        content[place : place + len(piece)] = piece
        at += 4 + size

    async def world() -> None:
        for node_id in (0, 1):
            await read_back(bytes(content), node_id)

    simulate(world, seed=1)


def volume_seeds() -> list[bytes]:
    return [place.to_bytes(3, "big") + bytes([8]) + bytes(8) for place in (0, 512, 1024, 4096)]


ENCRYPTED = "data/00/1-1-1"


def read_encrypted_object(data: bytes) -> bytes:
    """An object with the checksum and the magic of a trailer."""
    data = data.rjust(TRAILER_SIZE, b"\0")
    content = data[:-12] + struct.pack(">I", crc32c(data[-TRAILER_SIZE:-12])) + b"LKHDENCR"
    store = EncryptedStore(MemoryStore({ENCRYPTED: content}), _encryption_keys().data_keys())

    async def read() -> bytes:
        body = await store.get(ENCRYPTED)
        end, size = await store.get_suffix(ENCRYPTED, 100)
        assert (end, size) == (body[-100:], len(body))
        assert await store.get_range(ENCRYPTED, 0, size) == body
        assert content in encrypted_object_seeds(), "it was changed"
        return body

    return simulate(read, seed=1)


@cache
def encrypted_object_seeds() -> list[bytes]:
    async def write() -> list[bytes]:
        made = []
        for size in (100, 3000):
            inner = MemoryStore()
            store = EncryptedStore(inner, _encryption_keys().data_keys())
            await store.create(ENCRYPTED, [bytes(size)])
            made.append(inner.objects[ENCRYPTED])
        return made

    return simulate(write, seed=1)


@cache
def _encryption_keys() -> MemoryKeys:
    return MemoryKeys(random.Random(11))


def read_sasl(data: bytes) -> None:
    """A message of each mechanism that begins with the client's."""
    users = PlainUsers({"alice": "secret"})
    for mechanism in (PlainServer(users), OAuthBearerServer()):
        try:
            mechanism.evaluate(data)
        except SaslFailure:
            continue


def sasl_seeds() -> list[bytes]:
    bearer = b"n,,\x01auth=Bearer a.b.c\x01k=v\x01\x01"
    return [b"\0alice\0secret", b"alice\0alice\0secret", bearer, b"n,,n=alice,r=abc"]


@cache
def _keys() -> Any:
    return parse_jwks(jwks_seeds()[0])


def read_token(data: bytes) -> None:
    """A JSON Web Token: signed, and unsecured."""
    token = data.decode("latin-1")
    validate_unsecured(token, UnsecuredRules(), NOW_MS)
    validate_signed(token, _keys(), TokenRules(), NOW_MS)


def _part(document: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=")


def token_seeds() -> list[bytes]:
    claims = {
        "sub": "alice",
        "iat": 1_700_000_000,
        "exp": 1_800_000_000,
        "aud": ["a"],
        "scope": "x",
    }
    return [
        _part({"alg": "none"}) + b"." + _part(claims) + b".",
        _part({"alg": "ES256", "kid": "k"}) + b"." + _part(claims) + b"." + b"A" * 86,
        _part({"alg": "RS256", "crit": ["b64"]}) + b"." + _part(claims) + b".AAAA",
    ]


def jwks_seeds() -> list[bytes]:
    # The public key of RFC 7517, appendix A.1.
    x, y = (
        "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
    )
    key = {"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "k", "use": "sig"}
    return [json.dumps({"keys": [key, {"kty": "oct", "k": "AAAA"}]}).encode()]


def jaas_seeds() -> list[bytes]:
    module = b"org.apache.kafka.common.security.plain.PlainLoginModule required "
    return [module + b'username="a" password=\'b\' user_x="\\u0041" /* c */;']


TARGETS = {
    "frames": Target(read=read_frames, seeds=frame_seeds, errors=(), base_bytes=16 << 20),
    "requests": Target(
        read=read_request, seeds=request_seeds, errors=(MalformedFrame, UnsupportedVersion)
    ),
    "batches": Target(read=read_batch, seeds=batch_seeds, errors=(), base_bytes=16 << 20),
    "objects": Target(read=read_object, seeds=object_seeds, errors=(StorageError,)),
    "entries": Target(read=read_entry, seeds=entry_seeds, errors=(StorageError,)),
    "checkpoints": Target(
        read=log_targets.read_checkpoint,
        seeds=log_targets.checkpoint_seeds,
        errors=(StorageError,),
    ),
    "volumes": Target(
        read=read_volume,
        seeds=volume_seeds,
        errors=(StorageError, SettingsError),
        base_bytes=64 << 20,
    ),
    "encrypted-objects": Target(
        read=read_encrypted_object,
        seeds=encrypted_object_seeds,
        errors=(StorageError, SettingsError),
    ),
    "sasl": Target(read=read_sasl, seeds=sasl_seeds, errors=()),
    "tokens": Target(read=read_token, seeds=token_seeds, errors=(KeyUnknown,)),
    "key-sets": Target(read=parse_jwks, seeds=jwks_seeds, errors=(JwksError,), base_bytes=8 << 20),
    "jaas": Target(
        read=lambda data: parse_jaas(data.decode("latin-1")), seeds=jaas_seeds, errors=(JaasError,)
    ),
    "frames-before-login": Target(
        read=login_targets.read_frames_before_login,
        seeds=login_targets.frames_before_login_seeds,
        errors=(),
        base_bytes=16 << 20,
    ),
    "scram": Target(
        read=login_targets.read_scram, seeds=login_targets.scram_seeds, errors=(SaslFailure,)
    ),
    "certificates": Target(
        read=login_targets.read_certificate,
        seeds=login_targets.certificate_seeds,
        errors=(ValueError,),  # for these the connection is refused
    ),
    "sts-tokens": Target(read=login_targets.read_sts, seeds=login_targets.sts_seeds, errors=()),
    "partition-states": Target(
        read=log_targets.read_partition_state,
        seeds=log_targets.partition_state_seeds,
        errors=(UnsupportedFormat, ValueError),
    ),
    "producer-headers": Target(
        read=log_targets.read_producer_headers,
        seeds=log_targets.producer_header_seeds,
        errors=(ValueError,),
        base_bytes=16 << 20,
    ),
    "consumer-protocol": Target(
        read=group_targets.read_consumer_protocol,
        seeds=group_targets.consumer_protocol_seeds,
        errors=(),
    ),
    "group-records": Target(
        read=group_targets.read_group_record,
        seeds=group_targets.group_record_seeds,
        errors=(UnknownRecord,),
    ),
    "wal-objects": Target(
        read=log_targets.read_wal_objects,
        seeds=log_targets.wal_object_seeds,
        errors=(StorageError, SettingsError),
        base_bytes=16 << 20,
    ),
    "properties": Target(
        read=lambda data: parse_properties(data.decode("latin-1")),
        seeds=lambda: [b"a = b\nc\\:d: e\\u0041\\\n  f\n#x"],
        errors=(),
    ),
}
"""By name."""


def seeded(name: str, rng: random.Random) -> list[bytes]:
    """Return the valid inputs of a target in an order of the generator's."""
    seeds = list(TARGETS[name].seeds())
    rng.shuffle(seeds)
    return seeds
