"""A process that is forked off a template behaves as one that was executed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lakehead.storage.failpoints import KILLED
from tests.support.template_process import ForkedPython, killed_job, lakehead_command, run_forked

SHOW = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['WORD']); sys.exit('no')"


def test_it_has_its_arguments_folder_environment_output_and_status(tmp_path: Path) -> None:
    environment = os.environ | {"WORD": "é"}
    done = run_forked([sys.executable, "-c", SHOW, "a b"], cwd=tmp_path, env=environment)
    assert done.stdout == f"['a b'] {tmp_path} é\n"
    assert done.stderr == "no\n"
    assert done.returncode == 1
    assert "WORD" not in os.environ


def test_a_command_is_run_as_from_a_shell() -> None:
    done = lakehead_command("--version")
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "lakehead", "")
    assert lakehead_command("no-such-command").returncode == 2


def test_its_end_by_an_exception_or_a_signal_or_a_fail_point_is_known() -> None:
    failed = run_forked([sys.executable, "-c", "1 / 0"])
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
    script = (
        "from lakehead.storage.failpoints import failpoint; failpoint('here'); failpoint('here')"
    )
    assert killed_job(script, failpoint="here:2") == KILLED
    assert killed_job(script, failpoint="") == 0
    wait = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"]
    with ForkedPython(wait, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
