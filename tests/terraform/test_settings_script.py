"""The script of a host that takes settings from the bucket, run here with the real command that
checks them: what it puts in place, what it keeps, when nodes restart and what is reported.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.terraform.test_terraform_lint import IDENTITY, VALUES, files_written

SCRIPT = files_written()["/usr/local/sbin/lakehead-settings"]["content"]
GOOD, BETTER = '"log.level" = "info"\n', '"log.level" = "debug"\n'
UNKNOWN, TORN = '"log.levle" = "info"\n', '"log.level" = "in'
ADMIN = '"bootstrap.admin" = "admin"\n"bootstrap.admin.password" = "${env:ADMIN}"\n'
REPORTS = "lakehead/hosts"
OWN = f"{REPORTS}/{VALUES['hostname']}"
# S3 as a folder, with the calls that the script makes; `AWAY` is S3 out of reach.
AWS = """[ -z "$AWAY" ] || exit 1
shift
case "$1" in
  cp) shift; from="$1" to="$2"
    case "$from" in s3://*) cp "$S3/${from#s3://lake/}" "$to" ;;
      *) mkdir -p "$S3/$(dirname "${to#s3://lake/}")"; cp "$from" "$S3/${to#s3://lake/}" ;; esac ;;
  ls) cd "$S3" && find "lakehead/hosts" -type f -printf '2026-11-22 10:00:00 0 %p\\n' ;;
  rm) find "$S3/${5#s3://lake/}" -type f ! -name "$4" -delete ;;
esac
"""
# What the real command would do is in the file CALLS; its restart fetches, as the unit does.
LAKEHEAD = """case "$2" in
  check) exec "$PYTHON" -m lakehead "$@" ;;
  secrets) echo "$@" >>"$SECRETS"
    [ "$VAULT" = empty ] && exit 1
    echo "$VAULT" >"$4/host.pem"
    rm -f "$4/first-admin.toml"
    [ "$VAULT" != new ] || echo "$FIRST_ADMIN" >"$4/first-admin.toml" ;;
  serving) echo "$@" >>"$CALLS"; exit "${SERVING:-0}" ;;
  roll) echo "$@" >>"$CALLS"
    [ "$ROLLED" = refused ] && exit 1
    sh "$SELF" fetch && [ "$ROLLED" != lost ] ;;
esac
"""
INSTALL = """[ "$1 $2 $3 $4 $5" = "-d -m 2750 -g lakehead" ] && mkdir -p "$6"
"""
SYSTEMCTL = '[ "$UNIT" = active ]\n'


def version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Host:
    """A folder that stands for a host and for the bucket."""

    folder: Path

    @property
    def placed(self) -> Path:
        return self.folder / "etc/lakehead/lakehead.toml"

    @property
    def calls(self) -> list[str]:
        """The commands that restart nodes or wait for them, without their arguments."""
        file = self.folder / "calls"
        return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []

    def put(self, text: str) -> None:
        """Change the object, as Terraform does."""
        self.write_object("lakehead-settings/brokers.toml", text)

    def write_object(self, key: str, text: str = "") -> None:
        file = self.folder / "s3" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def reports(self) -> set[str]:
        place = self.folder / "s3"
        return {str(one.relative_to(place)) for one in place.glob(f"{REPORTS}/*/*")}

    def run(self, how: str, **given: str) -> subprocess.CompletedProcess[str]:
        environment: Mapping[str, str] = {
            "PATH": f"{self.folder}/programs:{os.environ['PATH']}",
            "S3": f"{self.folder}/s3",
            "CALLS": f"{self.folder}/calls",
            "SELF": f"{self.folder}/script",
            "PYTHON": sys.executable,
            "UNIT": "active",
            "SECRETS": f"{self.folder}/secrets",
            "VAULT": "certificate",
            "ADMIN": "password",
            "FIRST_ADMIN": ADMIN.rstrip(),
            **given,
        }
        return subprocess.run(
            ["sh", f"{self.folder}/script", how],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host that has booted with the settings GOOD."""
    programs = {"programs/aws": AWS, "programs/systemctl": SYSTEMCTL}
    programs |= {"programs/install": INSTALL, "programs/sleep": '[ "$1" = 15 ]\n'}
    programs["opt/lakehead/bin/lakehead"] = LAKEHEAD
    for name, text in programs.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}")
        file.chmod(0o755)
    script = SCRIPT
    for place in ("/opt/", "/etc/lakehead", "/var/lib/", "/run/lakehead"):
        script = script.replace(place, f"{tmp_path}{place}")
    (tmp_path / "script").write_text(script)
    (tmp_path / "etc/lakehead").mkdir(parents=True)
    (tmp_path / "etc/lakehead/host.toml").write_text(IDENTITY)
    (tmp_path / "var/lib/lakehead-settings").mkdir(parents=True)
    made = Host(tmp_path)
    made.put(GOOD)
    done = made.run("fetch")
    assert done.returncode == 0, done.stderr
    return made


def left_over(host: Host) -> set[str]:
    kept = {"host.toml", "lakehead.toml", "settings.toml"}
    return {one.name for one in (host.folder / "etc/lakehead").iterdir()} - kept


def test_a_start_has_what_is_the_host_s_own_and_what_is_in_the_bucket(host: Host) -> None:
    assert host.placed.read_text() == IDENTITY + GOOD
    assert host.placed.stat().st_mode & 0o777 == 0o644, "nodes read it, as another user"
    host.put(BETTER)
    assert host.run("fetch").returncode == 0
    assert host.placed.read_text() == IDENTITY + BETTER
    assert left_over(host) == set()


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(UNKNOWN, id="of another release"),
        pytest.param(TORN, id="torn"),
        pytest.param('"log.level" = 7\n', id="no such value"),
        pytest.param('"host.id" = "another"\n', id="another host's name"),
        pytest.param('"nodes" = -1\n', id="fewer than no nodes"),
    ],
)
def test_bad_settings_are_refused_and_the_last_good_ones_stay(host: Host, bad: str) -> None:
    host.put(bad)
    done = host.run("fetch")
    assert done.returncode == 0, done.stderr
    assert "the last good ones stay" in done.stderr
    assert host.placed.read_text() == IDENTITY + GOOD
    followed = host.run("follow")
    assert followed.returncode != 0
    assert "Traceback" not in followed.stderr
    assert (host.calls, host.reports(), left_over(host)) == ([], set(), set())
    host.placed.unlink()
    assert host.run("fetch").returncode != 0, "nothing good is known: the unit tries again"
    assert not host.placed.exists()


def test_a_host_starts_with_the_last_good_settings_when_the_bucket_is_away(host: Host) -> None:
    host.put(BETTER)
    assert host.run("fetch", AWAY="yes").returncode == 0
    assert host.placed.read_text() == IDENTITY + GOOD
    assert host.run("follow", AWAY="yes").returncode != 0
    assert host.calls == []
    host.placed.unlink()
    assert host.run("fetch", AWAY="yes").returncode != 0


def test_a_host_reports_its_settings_once_its_nodes_serve(host: Host) -> None:
    assert host.run("follow", SERVING="1").returncode != 0
    assert host.reports() == set()
    assert host.run("follow").returncode == 0
    assert host.reports() == {f"{OWN}/settings-{version(GOOD)}"}
    assert host.run("follow").returncode == 0
    assert host.calls == ["serving", "serving"], "once is enough"


def test_a_change_restarts_the_nodes_and_is_reported_after_it(host: Host) -> None:
    host.run("follow")
    host.put(BETTER)
    done = host.run("follow")
    assert done.returncode == 0, done.stderr
    assert host.calls == ["serving", "roll"]
    assert host.placed.read_text() == IDENTITY + BETTER
    assert host.reports() == {f"{OWN}/settings-{version(BETTER)}"}
    assert left_over(host) == set()


def test_a_host_that_may_not_restart_yet_tries_again_and_reports_nothing(host: Host) -> None:
    host.put(BETTER)
    assert host.run("follow", ROLLED="refused").returncode != 0
    assert host.placed.read_text() == IDENTITY + GOOD
    assert host.reports() == set()
    assert host.run("follow").returncode == 0
    assert host.reports() == {f"{OWN}/settings-{version(BETTER)}"}


def test_settings_with_which_nodes_did_not_come_back_stay_with_one_host(host: Host) -> None:
    host.put(BETTER)
    assert host.run("follow", ROLLED="lost").returncode != 0
    assert host.reports() == {f"{OWN}/failed-{version(BETTER)}"}
    # The same word of another host keeps this one from trying.
    host.put(GOOD)
    assert host.run("follow").returncode == 0
    assert host.reports() == {f"{OWN}/settings-{version(GOOD)}"}
    host.put(BETTER)
    host.write_object(f"{REPORTS}/lakehead-b-0/failed-{version(BETTER)}")
    before = host.calls
    done = host.run("follow")
    assert done.returncode != 0
    assert "nodes of lakehead-b-0 did not come back" in done.stderr
    assert (host.calls, host.placed.read_text()) == (before, IDENTITY + GOOD)


def test_a_host_that_was_stopped_stays_so(host: Host) -> None:
    host.put(BETTER)
    assert host.run("follow", UNIT="inactive").returncode == 0
    assert (host.calls, host.placed.read_text()) == ([], IDENTITY + GOOD)


def test_a_host_of_a_group_reports_under_the_slot_that_it_claimed(host: Host) -> None:
    assert host.run("follow", LAKEHEAD_HOST_ID="lakehead-c-1").returncode == 0
    assert host.reports() == {f"{REPORTS}/lakehead-c-1/settings-{version(GOOD)}"}


def test_secrets_are_copied_before_settings_are_in_place(host: Host) -> None:
    assert (host.folder / "run/lakehead/host.pem").read_text() == "certificate\n"
    (line,) = (host.folder / "secrets").read_text().splitlines()
    words = line.split()
    assert words[:2] == ["settings", "secrets"]
    assert words[3:] == [
        f"{host.folder}/run/lakehead",
        *("--prefix", "lakehead", "--region", "us-east-1", "--admin", "admin"),
    ]


def test_a_host_waits_for_the_values_of_its_secrets(host: Host) -> None:
    host.placed.unlink()
    assert host.run("fetch", VAULT="empty").returncode != 0
    assert not host.placed.exists()
    assert host.run("fetch").returncode == 0
    host.put(BETTER)
    assert host.run("follow", VAULT="empty").returncode != 0
    assert host.calls == []
    assert host.run("fetch", VAULT="empty").returncode != 0, "nodes would start without a key"


def test_a_rotated_certificate_restarts_no_node(host: Host) -> None:
    host.run("follow")
    assert host.run("follow", VAULT="later").returncode == 0
    assert (host.folder / "run/lakehead/host.pem").read_text() == "later\n"
    assert host.calls == ["serving"]


def test_the_first_admin_is_a_setting_until_the_cluster_exists(host: Host) -> None:
    assert host.run("fetch", VAULT="new").returncode == 0
    assert host.placed.read_text() == IDENTITY + GOOD + ADMIN
    assert host.run("follow", VAULT="new").returncode == 0
    assert host.placed.read_text() == IDENTITY + GOOD + ADMIN
    assert host.run("follow").returncode == 0
    assert host.placed.read_text() == IDENTITY + GOOD, "users of the cluster are its own"
    assert host.calls == ["serving"], "no node restarts for that"
    assert host.reports() == {f"{OWN}/settings-{version(GOOD)}"}
    assert left_over(host) == set()


def test_a_cluster_with_plaintext_reads_no_secret(host: Host) -> None:
    plain = files_written(secrets="")["/usr/local/sbin/lakehead-settings"]["content"]
    for place in ("/opt/", "/etc/lakehead", "/var/lib/", "/run/lakehead"):
        plain = plain.replace(place, f"{host.folder}{place}")
    (host.folder / "script").write_text(plain)
    before = (host.folder / "secrets").read_text()
    host.put(BETTER)
    assert host.run("fetch", VAULT="empty").returncode == 0
    assert host.placed.read_text() == IDENTITY + BETTER
    assert (host.folder / "secrets").read_text() == before


def test_a_slot_is_claimed_before_its_certificate_is_tried() -> None:
    unit = files_written(before_start="/claim")["/etc/systemd/system/lakehead.service"]["content"]
    assert unit.index("=/claim") < unit.index("lakehead-settings fetch")


def test_the_timer_and_the_unit_fetch_as_root_and_the_nodes_do_not() -> None:
    files = files_written()
    unit = files["/etc/systemd/system/lakehead.service"]["content"]
    assert "ExecStartPre=+/usr/local/sbin/lakehead-settings fetch\n" in unit
    assert unit.index("lakehead-install") < unit.index("lakehead-settings fetch")
    reload = [line for line in unit.splitlines() if line.startswith("ExecReload=")]
    assert reload[0] == "ExecReload=+/usr/local/sbin/lakehead-settings fetch"
    assert reload[1] == "ExecReload=/bin/kill -HUP $MAINPID"
    follow = files["/etc/systemd/system/lakehead-settings.service"]["content"]
    assert "ExecStart=/usr/local/sbin/lakehead-settings follow\n" in follow
    assert "EnvironmentFile=-/var/lib/lakehead/slot.env\n" in follow
    assert (
        "OnUnitInactiveSec=60\n"
        in (files["/etc/systemd/system/lakehead-settings.timer"]["content"])
    )
