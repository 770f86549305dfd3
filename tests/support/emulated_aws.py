"""An emulated AWS with a bucket, for tests of a node's requests to S3 and KMS."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.own_environment import NotInstalled
from tests.terraform.emulator import Emulator, emulator


@contextmanager
def emulated_aws(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, bucket: str
) -> Iterator[Emulator]:
    """Yield an emulator that the environment leads to. The test is skipped where it cannot be had,
    and fails if the emulator does.
    """
    try:
        with emulator(folder / "emulator.log") as served:
            for name, value in served.environment().items():
                monkeypatch.setenv(name, value)
            served.client("s3").create_bucket(Bucket=bucket)
            yield served
            assert served.faults() == []
    except NotInstalled as error:
        pytest.skip(str(error))


def kms_key(aws: Emulator) -> str:
    """Make a key; return its ARN."""
    key: str = aws.client("kms").create_key()["KeyMetadata"]["Arn"]
    return key
