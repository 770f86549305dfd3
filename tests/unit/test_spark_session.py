"""What a session needs before it can start, and what a user is told without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakehead.lake import spark
from lakehead.lake.spark import s3a_settings
from lakehead.storage.errors import SettingsError


def fake_java(folder: Path, answer: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_a_java_that_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, version: int
) -> None:
    fake_java(tmp_path, answer)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark.check_java() == version


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('GRAALVM_VERSION="22.3"\nJAVA_VERSION="17.0.15"\n', 17),
        ('IMPLEMENTOR_VERSION="Temurin-25.0.3+9"\nJAVA_VERSION="25-ea"\n', 25),
    ],
)
def test_a_java_that_says_its_version_in_a_file_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, version: int
) -> None:
    fake_java(tmp_path, "?")
    (tmp_path / "release").write_text(said)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark.check_java() == version
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(SettingsError, match="is Java 8"):
        spark.check_java()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ('java version "1.8.0_402"', "Java 8"),
        ('openjdk version "11.0.2"', "Java 11"),
        ("?", "Java "),
    ],
)
def test_a_java_that_is_too_old_gets_the_command_that_installs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, found: str
) -> None:
    fake_java(tmp_path, answer)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="needs Java 17 or newer") as caught:
        spark.check_java()
    assert found in str(caught.value)
    assert "install openjdk" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match=r"needs Java 17 or newer: .*install openjdk"):
        spark.check_java()


def test_a_home_of_java_that_has_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match=f"JAVA_HOME={tmp_path} has no bin/java: .*unset it"):
        spark.check_java()


def test_the_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAKEHEAD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert spark.cache_folder() == tmp_path / "lakehead"
    monkeypatch.setenv("LAKEHEAD_CACHE", str(tmp_path / "mine"))
    assert spark.cache_folder() == tmp_path / "mine"


def test_s3_takes_credentials_from_the_environment_or_where_the_sdk_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_bucket = "spark.hadoop.fs.s3a.bucket.b"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, name.lower())
    given = s3a_settings("s3://b/tables/t?endpoint=http://localhost:9&region=eu-west-1")
    assert given[f"{of_bucket}.access.key"] == "aws_access_key_id"
    assert given[f"{of_bucket}.session.token"] == "aws_session_token"
    assert given[f"{of_bucket}.endpoint"] == "http://localhost:9"
    assert given[f"{of_bucket}.endpoint.region"] == "eu-west-1"
    assert f"{of_bucket}.aws.credentials.provider" not in given
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    elsewhere = s3a_settings("s3://b/tables/t")
    assert elsewhere[f"{of_bucket}.aws.credentials.provider"].endswith("DefaultCredentialsProvider")
    with pytest.raises(SettingsError, match="AWS_PROFILE"):
        s3a_settings("s3://b/tables/t?profile=me")


def test_workers_start_without_the_archives_of_pyspark(tmp_path: Path) -> None:
    kept = ["/a folder/*", "/jobs/python/lib/own.zip", "$HOME"]
    archives = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    code = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable, sys.argv[1:])"
    run = subprocess.run(
        [spark.worker_python(tmp_path), "-c", code, "two words"],
        env={**os.environ, "PYTHONPATH": ":".join([*archives, *kept])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == [":".join(kept), f"{sys.executable} ['two words']"]


def test_workers_start_by_this_python_where_no_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # a file system that was mounted so
    assert spark.worker_python(tmp_path) == sys.executable
