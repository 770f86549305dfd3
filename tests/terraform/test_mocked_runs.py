"""Files of tests side by side: none ends or hides another. Terraform is a script here."""

import os
import sys
from pathlib import Path

import pytest

from tests.terraform.mocked_runs import NotServed, run_files, served_provider

PROGRAM = """
import sys, threading
name = sys.argv[1].rpartition("/")[2].partition(".")[0]
print(f"tests/{name}... in progress", flush=True)
if name == "hangs":
    threading.Event().wait()
if name == "fails":
    print("Error: Test assertion failed\\n\\nFailure! 2 passed, 1 failed, 3 skipped.")
    sys.exit(1)
if name == "crashes":
    sys.exit(11)
if name == "says_nothing":
    sys.exit(0)
print("\\nSuccess! 4 passed, 0 failed.")
"""
PROVIDER = """#!/bin/sh
echo Starting
echo "  TF_REATTACH_PROVIDERS='{\\"aws\\": {\\"Pid\\": $$}}'"
exec sleep 600
"""


def files(folder: Path, *names: str) -> Path:
    (folder / "tests").mkdir()
    for name in names:
        (folder / "tests" / f"{name}.tftest.hcl").write_text('\nrun "one" {\n}\n')
    return folder


def test_a_file_that_hangs_fails_or_crashes_ends_no_other(tmp_path: Path) -> None:
    names = ("crashes", "fails", "hangs", "passes", "passes_too", "says_nothing")
    lines: list[str] = []
    done = run_files(
        [sys.executable, "-c", PROGRAM],
        files(tmp_path, *names),
        os.environ,
        lines.append,
        seconds=5,
        workers=3,
    )
    assert [(one.name, one.passed, one.failed) for one in done] == [
        ("crashes", 0, 1),
        ("fails", 2, 1),
        ("hangs", 0, 1),
        ("passes", 4, 0),
        ("passes_too", 4, 0),
        ("says_nothing", 0, 1),
    ]
    said = "\n".join(lines)
    assert "Error: Test assertion failed" in said
    assert "tests/hangs... in progress\n\nnot done in 5 seconds" in said
    assert "tests/passes..." not in said, "a file that passes is one line"
    assert any(line.startswith("passes: 4 passed (") for line in lines)
    assert any(line.startswith("fails: 2 passed, 1 failed (") for line in lines)


def provider(folder: Path, text: str) -> Path:
    place = folder / ".terraform/providers/registry.terraform.io/hashicorp/aws/5.100.0/linux_amd64"
    place.mkdir(parents=True)
    program = place / "terraform-provider-aws_v5.100.0_x5"
    program.write_text(text)
    program.chmod(0o755)
    return folder


def test_a_provider_serves_until_the_files_are_done(tmp_path: Path) -> None:
    with served_provider(provider(tmp_path, PROVIDER), tmp_path / "log") as given:
        pid = int(given["TF_REATTACH_PROVIDERS"].rpartition(" ")[2].rstrip("}"))
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_provider_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = provider(tmp_path, "#!/bin/sh\necho no memory >&2\nexit 2\n")
    with pytest.raises(NotServed, match="no memory"), served_provider(broken, tmp_path / "log"):
        pass
