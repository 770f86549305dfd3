"""Fixtures: a real S3 server (versitygw) for all tests of a process, a bucket for each test.

Where it cannot be built, tests are skipped with the reason, and fail instead when `LAKEHEAD_CI` is
set: a run that is to prove something must not pass by leaving it out.
"""

import os
import secrets
from collections.abc import Iterator

import pytest

from bench.s3_server import NotBuilt, S3Server, program, running_server


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for all tests of this process. Tests take `s3_server`, not this."""
    try:
        program()
    except NotBuilt as reason:
        if os.environ.get("LAKEHEAD_CI"):
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))
    with running_server(tmp_path_factory.mktemp("s3") / "buckets") as server:
        yield server


@pytest.fixture
def s3_server(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 server with an empty bucket of this test's own; the environment leads to it."""
    bucket = f"test-{secrets.token_hex(6)}"
    s3_process.create_bucket(bucket)
    own = S3Server(
        folder=s3_process.folder,
        endpoint=s3_process.endpoint,
        bucket=bucket,
    )
    for name, value in own.environment.items():
        monkeypatch.setenv(name, value)
    return own
