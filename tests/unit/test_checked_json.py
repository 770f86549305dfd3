"""JSON objects with a checksum: backups and promotions are read from nothing else."""

import msgspec
import pytest

from lakehead.storage.errors import CorruptObject, UnsupportedFormat
from lakehead.storage.format.checked_json import decode_checked, with_checksum


class Kept(msgspec.Struct, frozen=True):
    version: int
    name: str


def decoded(body: bytes) -> Kept:
    return decode_checked("key", body, Kept, newest=1)


def test_an_object_is_read_back() -> None:
    kept = Kept(version=1, name="a")
    assert decoded(with_checksum(msgspec.json.encode(kept))) == kept


def test_a_body_without_a_checksum_is_refused() -> None:
    body = msgspec.json.encode(Kept(version=1, name="a"))
    with pytest.raises(CorruptObject, match="no checksum"):
        decoded(body)
    late = b'{"version":1,"crc32c":"00000000","name":"a"}'
    with pytest.raises(CorruptObject, match="no checksum"):
        decoded(late)


def test_a_body_with_a_wrong_checksum_is_refused_whatever_it_says() -> None:
    body = bytearray(with_checksum(msgspec.json.encode(Kept(version=1, name="a"))))
    for place in range(len(body)):
        damaged = bytearray(body)
        damaged[place] ^= 1
        with pytest.raises((CorruptObject, UnsupportedFormat)):
            decoded(bytes(damaged))


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_newer_version_is_named_even_without_a_checksum(is_checked: bool) -> None:
    body = msgspec.json.encode({"version": 2, "other": 1})
    with pytest.raises(UnsupportedFormat, match="version 2"):
        decoded(with_checksum(body) if is_checked else body)
