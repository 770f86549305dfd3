"""Secrets in the metadata: each is declared, and no command shows it."""

import re

import msgspec

from lakehead.broker.configs.entries import is_secret_config
from lakehead.storage.metadata import records
from lakehead.storage.metadata.hidden_fields import SECRET_FIELDS, without_secrets
from lakehead.storage.metadata.records import Entry, NodeSecret, RecordBase, ScramUpsert

SECRET = re.compile(r"secret|password|salt|hmac|private|_key$")


def test_every_record_with_a_field_named_like_a_secret_declares_it() -> None:
    found = {
        kind.__name__: {name for name in kind.__struct_fields__ if SECRET.search(name)}
        for kind in vars(records).values()
        if isinstance(kind, type) and issubclass(kind, RecordBase)
    }
    assert {name: fields for name, fields in found.items() if fields} == {
        name: set(fields) for name, fields in SECRET_FIELDS.items()
    }


def test_a_record_hides_its_secrets_in_representation_and_inspection() -> None:
    secret = NodeSecret(secret="ab" * 32)
    scram = ScramUpsert(
        user="u",
        mechanism="SCRAM-SHA-256",
        iterations=4096,
        salt=b"salt-",
        stored_key=b"stored",
        server_key=b"server",
    )
    broker = records.BrokerConfig(
        node_id=1, configs={"ssl.keystore.password": "pw-mark", "max.connections": "5"}
    )
    encoded = msgspec.json.encode(
        Entry(version=1, writer="w", nonce="n", time_ms=1, records=(secret, scram, broker))
    )
    entry = msgspec.json.decode(encoded)
    without_secrets(entry, is_secret_config)
    shown = msgspec.json.encode(entry).decode() + repr(secret) + repr(scram)
    for mark in (
        "abab",
        "pw-mark",
        "c2FsdC0",
        "c3RvcmVk",
        "c2VydmVy",
        "salt-",
        "stored",
        "server'",
    ):
        assert mark not in shown.replace("stored_key", ""), mark
    assert '"max.connections":"5"' in shown
    assert shown.count("[hidden]") == 5
