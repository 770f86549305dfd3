"""The script of a host that has the CloudWatch agent do what the bucket says, with an agent that
writes down what it is to do.
"""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.terraform_tables import ROOT
from tests.terraform.test_terraform_lint import VALUES, files_written

SCRIPT = files_written()["/usr/local/sbin/lakehead-cloudwatch"]["content"]
OFF = "off\n"
STREAM = {"logs": {"log_stream_name": "@HOST@/{instance_id}"}}
ON = f"{json.dumps(STREAM)}\n" + '{"scrape_configs": [{"job_name": "@HOST@"}]}\n'
MORE = ON.replace("scrape_configs", "more")
CONTROL = "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
AWS = """[ -z "$AWAY" ] || exit 1
shift 2
[ "$1" = s3://lake/lakehead-settings/cloudwatch.jsonl ] && cp "$BUCKET" "$2"
"""
# The package brings the agent and its user.
DNF = """echo "dnf $*" >>"$CALLS"
[ -z "$NO_REPOSITORY" ] || exit 1
mkdir -p "$(dirname "$CONTROL")" && cp "$AGENT" "$CONTROL"
"""
AGENT = """#!/bin/sh
echo "agent $*" >>"$CALLS"
[ -z "$REFUSED" ]
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A folder that stands for a host and for the object in the bucket."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "etc/lakehead/cloudwatch"

    def calls(self) -> list[str]:
        """Return what was called since the last time."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [re.sub(r" \S*/(?=agent\.json)", " ", line) for line in lines]

    def run(self, text: str, **given: str) -> subprocess.CompletedProcess[str]:
        """Run the script while the bucket has a text."""
        (self.folder / "object").write_text(text)
        environment: Mapping[str, str] = {
            "PATH": f"{self.folder}/programs:{os.environ['PATH']}",
            "BUCKET": f"{self.folder}/object",
            "CALLS": f"{self.folder}/calls",
            "AGENT": f"{self.folder}/agent",
            "CONTROL": f"{self.folder}/{CONTROL}",
            **given,
        }
        return subprocess.run(
            ["sh", f"{self.folder}/script"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host that has booted, and has no agent."""
    told = 'echo "${0##*/} $*" >>"$CALLS"\n'
    for name, text in {"aws": AWS, "dnf": DNF, "systemctl": told, "usermod": told}.items():
        file = tmp_path / "programs" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}")
        file.chmod(0o755)
    (tmp_path / "agent").write_text(AGENT)
    (tmp_path / "agent").chmod(0o755)
    script = re.sub(r"(?<![\w}])/(?=opt/|etc/)", f"{tmp_path}/", SCRIPT)
    (tmp_path / "script").write_text(script)
    return Host(tmp_path)


INSTALLED = [
    "dnf install --assumeyes --quiet amazon-cloudwatch-agent",
    "usermod --append --groups systemd-journal cwagent",
]
APPLIED = "agent -a fetch-config -m ec2 -c agent.json -s"


def test_nothing_runs_where_nothing_is_shipped(host: Host) -> None:
    done = host.run(OFF)
    assert (done.returncode, host.calls()) == (0, [])
    assert not (host.folder / CONTROL).exists()


def test_the_agent_is_installed_and_has_what_the_bucket_says(host: Host) -> None:
    done = host.run(ON)
    assert done.returncode == 0, done.stderr
    assert host.calls() == [*INSTALLED, APPLIED]
    agent = json.loads((host.config / "agent.json").read_text())
    assert agent["logs"]["log_stream_name"] == f"{VALUES['hostname']}/{{instance_id}}"
    scrape = json.loads((host.config / "prometheus.yaml").read_text())
    assert scrape["scrape_configs"][0]["job_name"] == VALUES["hostname"]
    for name in ("agent.json", "prometheus.yaml"):
        assert (host.config / name).stat().st_mode & 0o777 == 0o644, "the agent is another user"


def test_the_agent_goes_on_undisturbed_until_something_changes(host: Host) -> None:
    host.run(ON)
    host.calls()
    assert (host.run(ON).returncode, host.calls()) == (0, [])
    assert host.run(MORE).returncode == 0
    assert host.calls() == [INSTALLED[1], APPLIED]
    assert "more" in (host.config / "prometheus.yaml").read_text()


def test_an_agent_that_the_image_has_is_not_installed(host: Host) -> None:
    file = host.folder / CONTROL
    file.parent.mkdir(parents=True)
    file.write_text(AGENT)
    file.chmod(0o755)
    assert host.run(ON).returncode == 0
    assert host.calls() == [INSTALLED[1], APPLIED]


def test_the_agent_stops_when_nothing_is_shipped_any_more(host: Host) -> None:
    host.run(ON)
    host.calls()
    stopped = ["systemctl disable --now amazon-cloudwatch-agent.service"]
    assert (host.run(OFF).returncode, host.calls()) == (0, stopped)
    assert (host.run(OFF).returncode, host.calls()) == (0, []), "once is enough"
    assert (host.run(ON).returncode, host.calls()) == (0, [INSTALLED[1], APPLIED])


@pytest.mark.parametrize("fault", ["AWAY", "NO_REPOSITORY", "REFUSED"])
def test_what_fails_is_tried_again(host: Host, fault: str) -> None:
    assert host.run(ON, **{fault: "yes"}).returncode != 0
    host.calls()
    done = host.run(ON)
    assert done.returncode == 0, done.stderr
    assert host.calls()[-1] == APPLIED


@pytest.mark.parametrize("fault", ["AWAY", "REFUSED"])
def test_a_change_that_fails_leaves_what_may_be_stopped(host: Host, fault: str) -> None:
    host.run(ON)
    assert host.run(MORE, **{fault: "yes"}).returncode != 0
    host.calls()
    assert host.run(OFF).returncode == 0
    assert host.calls() == ["systemctl disable --now amazon-cloudwatch-agent.service"]


def test_an_agent_that_was_started_and_refused_is_stopped_by_off(host: Host) -> None:
    assert host.run(ON, REFUSED="yes").returncode != 0
    host.calls()
    assert host.run(OFF).returncode == 0
    assert host.calls() == ["systemctl disable --now amazon-cloudwatch-agent.service"]


def test_a_host_of_a_group_ships_under_the_slot_that_it_claimed(host: Host) -> None:
    host.run(ON)
    host.calls()
    assert host.run(ON, LAKEHEAD_HOST_ID="lakehead-c-1").returncode == 0
    assert host.calls() == [INSTALLED[1], APPLIED]
    assert '"lakehead-c-1/{instance_id}"' in (host.config / "agent.json").read_text()


def test_the_timer_looks_again_and_brokers_wait_for_none_of_it() -> None:
    files = files_written()
    unit = files["/etc/systemd/system/lakehead-cloudwatch.service"]["content"]
    assert "EnvironmentFile=-/var/lib/lakehead/slot.env\n" in unit
    assert "Restart=on-failure\n" in unit
    timer = files["/etc/systemd/system/lakehead-cloudwatch.timer"]["content"]
    assert "OnUnitInactiveSec=600\n" in timer
    assert "cloudwatch" not in files["/etc/systemd/system/lakehead.service"]["content"]


def test_the_units_that_are_shipped_are_there_and_named_in_full() -> None:
    # journalctl looks for patterns once, when it starts: a unit that comes later would be missed.
    module = (ROOT / "modules" / "cloudwatch" / "main.tf").read_text()
    (listed,) = re.findall(r"^  units = (\[.*\])$", module, re.MULTILINE)
    units = json.loads(listed)
    made = {Path(path).name for path in files_written() if path.startswith("/etc/systemd/system/")}
    of_ours = {name for name in made if name.endswith(".service")}
    assert set(units) == of_ours | {"cloud-final.service"}


def test_metrics_that_are_shipped_are_metrics_of_brokers() -> None:
    module = (ROOT / "modules" / "cloudwatch" / "main.tf").read_text()
    shipped = set(
        re.findall(r"^    (lakehead_\w+) += \"(?:Count|Bytes|Seconds)\"", module, re.MULTILINE)
    )
    page = (ROOT.parents[1] / "docs" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(lakehead_\w+)` \|", page, re.MULTILINE))
    # With a label, a metric would be one for each of its values.
    assert len(shipped) > 10
    assert shipped - known == set()


def test_what_pages_by_prometheus_rings_an_alarm_of_cloudwatch() -> None:
    folder = ROOT / "modules" / "observability"
    rules = (folder / "rules.yaml").read_text()
    paging = set(re.findall(r"- alert: (\w+)\n(?:(?!- alert).)*?severity: page", rules, re.DOTALL))
    module = (folder / "main.tf").read_text()
    # Metrics that do not arrive at all are the alarm of LakeheadNotWritable.
    assert set(re.findall(r'rule = "(\w+)"', module)) == paging - {"LakeheadNoNodeAnswers"}
