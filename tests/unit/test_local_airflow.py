"""What of `lakehead airflow` needs no Airflow: its home, and processes that end with it."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lakehead.broker.cli.demonstration.airflow_home import MARK, AirflowHome, free_port
from lakehead.broker.cli.demonstration.airflow_process import end_leftovers
from lakehead.broker.cli.demonstration.bound_process import bound
from lakehead.broker.cli.local_airflow import own_folder
from lakehead.storage.errors import RequestRefused
from tests.support.waiting import wait_until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def home(tmp_path: Path) -> AirflowHome:
    return AirflowHome(folder=tmp_path, dags=tmp_path / "dags", port=4711)


def test_settings_of_another_airflow_do_not_reach_it(home: AirflowHome) -> None:
    base = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://production/airflow",
        "AIRFLOW_HOME": "/production",
        "LAKEHEAD_SUPERVISOR": "1",
        "AWS_REGION": "eu-west-1",
        "PATH": "/bin",
    }
    found = home.environment(
        base,
        connection={"conn_type": "lakehead"},
        variables={"a": {"b": 1}},
        keeps_settings=False,
    )
    assert "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in found
    assert found["AIRFLOW_HOME"] == str(home.folder)
    assert found["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert "LAKEHEAD_SUPERVISOR" not in found
    assert found["AWS_REGION"] == "eu-west-1"
    assert json.loads(found["AIRFLOW_CONN_LAKEHEAD_DEFAULT"]) == {"conn_type": "lakehead"}
    assert json.loads(found["AIRFLOW_VAR_A"]) == {"b": 1}


def test_variables_of_the_caller_go_before_ours(home: AirflowHome) -> None:
    found = home.environment(
        {"AIRFLOW_VAR_A": "2"}, connection={}, variables={"a": 1}, keeps_settings=False
    )
    assert found["AIRFLOW_VAR_A"] == "2"


def test_jobs_of_a_given_cluster_have_its_keys_and_those_of_the_demo_none(
    home: AirflowHome,
) -> None:
    of_cluster = {
        "LAKEHEAD_ENCRYPTION_KEY_PROVIDER": "kms",
        "LAKEHEAD_ENCRYPTION_KMS_KEY": "alias/lake",
        "LAKEHEAD_ENCRYPTION_REQUIRED": "true",
        "LAKEHEAD_TABLE_ROOTS": "s3://lake/tables",
    }
    of_processes = {"LAKEHEAD_SUPERVISOR": "1", "LAKEHEAD_PATH": "/other", MARK: "/other"}
    for keeps_settings in (True, False):
        found = home.environment(
            of_cluster | of_processes, connection={}, variables={}, keeps_settings=keeps_settings
        )
        ours = {name: found[name] for name in found if name.startswith("LAKEHEAD_")}
        expected = of_cluster if keeps_settings else {}
        assert ours == expected | {MARK: str(home.folder)}


def test_the_password_is_kept_and_nobody_elses_to_read(home: AirflowHome) -> None:
    word = home.password()
    assert len(word) >= 12
    assert home.password() == word
    [file] = home.folder.glob("passwords*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_two_at_once_have_folders_of_their_own_and_one_after_the_other_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with own_folder(None) as first, own_folder(None) as second:
        assert [first.name, second.name] == ["lakehead-airflow", "lakehead-airflow-2"]
        with pytest.raises(RequestRefused, match="another one runs in"), own_folder(first):
            pass
    with own_folder(None) as again:
        assert again == first


def test_a_port_that_is_taken_is_not_chosen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port


@pytest.fixture
def parent(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that starts a bound one, says which, and waits."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys\n"
        f"child = subprocess.Popen({bound(SLEEP)!r}, stdout=subprocess.PIPE, text=True)\n"
        "assert child.stdout.readline() == 'up\\n'\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_a_bound_process_ends_with_its_parent(parent: "subprocess.Popen[str]") -> None:
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not child.is_running() or child.status() == "zombie", 30)


def test_a_bound_process_can_wait_for_a_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        command = bound(
            [sys.executable, "-c", "print('begun')"], after_port=listener.getsockname()[1]
        )
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            listener.listen()
            said, _ = process.communicate(timeout=60)
            assert said == "begun\n"


def test_what_an_earlier_run_left_is_ended_and_nothing_else(tmp_path: Path) -> None:
    marks = (f"{tmp_path}/one", f"{tmp_path}/one-more")
    started = [
        subprocess.Popen(SLEEP, stdout=subprocess.PIPE, text=True, env={**os.environ, MARK: mark})
        for mark in marks
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        end_leftovers(Path(marks[0]))
        assert started[0].wait(30) == -signal.SIGKILL
        assert started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.communicate()
