"""Spark reads an encrypted cluster by options or by the environment, and says what it lacks."""

import random
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakehead.storage.clock import SystemClock
from lakehead.storage.encryption.chunks import is_encrypted
from lakehead.storage.encryption.key_file import add_key
from lakehead.storage.encryption.settings import EncryptionSettings
from lakehead.storage.object_store import open_store
from lakehead.storage.object_store.encrypted import encrypted
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

VALUE = b"4111-1111-1111-1111"


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A topic `cards` in four objects: one is plain, and two have another key than the last."""
    keys, folder = tmp_path / "keys", str(tmp_path / "cluster")
    add_key(keys, "first", rng=random.Random(1))
    clock, rng = SystemClock(), random.Random(2)
    made = LakeCluster(open_store(folder))
    made.create_topic("cards", 1)
    for number in range(4):
        if number == 3:
            add_key(keys, "second", rng=rng)
        settings = EncryptionSettings(provider="file" if number else "none", key_file=str(keys))
        made._place = encrypted(open_store(folder), settings, clock=clock, rng=rng)
        records = [
            TestRecord(offset=number * 500 + n, timestamp=1000, key=None, value=VALUE)
            for n in range(500)
        ]
        made.write({("cards", 0): [encode_batch(records)]})
    data = [path.read_bytes() for path in (tmp_path / "cluster" / "data").rglob("*-*")]
    assert sorted(map(is_encrypted, data)) == [False, True, True, True]
    return folder


def test_options_decrypt_on_driver_and_executors(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    reader = spark.read.format("lakehead").options(
        **{
            "path": place,
            "subscribe": "cards",
            "encryption.key.provider": "file",
            "encryption.key.file": str(tmp_path / "keys"),
        }
    )
    rows = reader.load().select("offset", "value").collect()
    assert sorted(row.offset for row in rows) == list(range(2000))
    assert {bytes(row.value) for row in rows} == {VALUE}
    topics = (
        spark.read.format("lakehead")
        .options(path=place, catalog="topics")
        .option("encryption.key.file", str(tmp_path / "keys"))
        .load()
        .collect()
    )
    assert [row.topic for row in topics] == ["cards"]


def test_a_missing_or_wrong_key_is_one_clear_error(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=r"is encrypted by the key .* set encryption\.key"):
        spark.read.format("lakehead").options(path=place, subscribe="cards").load().collect()
    add_key(tmp_path / "others", "other", rng=random.Random(9))
    with pytest.raises(PySparkException, match=r"cannot decrypt .* is not in .*others"):
        spark.read.format("lakehead").options(path=place, subscribe="cards").option(
            "encryption.key.file", str(tmp_path / "others")
        ).load().collect()
    with pytest.raises(PySparkException, match="'vault' is not one of: none, file, kms"):
        spark.read.format("lakehead").options(path=place, subscribe="cards").option(
            "encryption.key.provider", "vault"
        ).load().collect()


def test_a_stream_decrypts(spark: SparkSession, place: str, tmp_path: Path) -> None:
    frame = (
        spark.readStream.format("lakehead")
        .options(path=place, subscribe="cards", startingOffsets="earliest")
        .option("encryption.key.file", str(tmp_path / "keys"))
        .load()
    )
    query = (
        frame.writeStream.format("memory")
        .queryName("encrypted_cards")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert spark.table("encrypted_cards").count() == 2000
