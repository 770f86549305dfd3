"""The scripts of a host's user data and of its image, run here: what they install, and what nodes
may touch.
"""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.terraform.airflow_user_data import files_written as files_of_airflow
from tests.terraform.test_terraform_lint import INSTALL, files_written, user_data

WHEEL = "lakehead-1.0-py3-none-any.whl"
EXTRAS = "[client,compaction,s3]"
ADDRESS = f"s3://packages/lakehead/{WHEEL}"
PROVISION = Path(__file__).parents[2] / "infra" / "packer" / "provision"
# What scripts of hosts touch, but for what a test has to have from this machine.
PLACES = (
    r"(?<![\w.}])/(?:etc(?:/lakehead|/ssh|/systemd)?|opt|tmp|usr/local/sbin|var/\w+(?:/journal)?)/"
)
FAKES = {
    "aws": 'for place; do :; done\ncp -r "$FOLDER"/. "$place"\n',
    "python3.11": 'case "$1" in -m) mkdir -p "$4/bin"; cp "$PIP" "$4/bin/pip" ;; esac\n',
    "cloud-init": 'echo "cloud-init $*" >>"$CALLS"; [ "$1" != status ] || exit "${BOOTED:-0}"\n',
    "dnf": 'echo "dnf $*" >>"$CALLS"; [ -n "$DNF" ]\n',
    "lsblk": """case "$*" in
  *MOUNTPOINT*) echo "$MOUNTED" ;;
  *--inverse*) [ -z "$FAILS" ] && printf 'nvme0n1p1\\nnvme0n1\\n' ;;
esac
""",
    "findmnt": "echo /dev/nvme0n1p1\n",
    "uname": 'echo "$KERNEL"\n',
}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder that stands for a host, with programs that are not here."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in FAKES.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}")
        (programs / name).chmod(0o755)
    pip = tmp_path / "pip"
    pip.write_text(
        '#!/bin/sh\nls >"$INSTALLED"\necho "$@" >>"$INSTALLED"\ncp "$LAKEHEAD" "${0%pip}"\n'
    )
    pip.chmod(0o755)
    lakehead = tmp_path / "lakehead"
    lakehead.write_text('#!/bin/sh\n[ "$1" = --version ] && [ -z "$FOREIGN" ]\n')
    lakehead.chmod(0o755)
    return tmp_path


def placed(host: Path, script: str) -> str:
    """Return a script with the folder in place of the host's file system."""
    for place in re.findall(PLACES, script):
        (host / place.strip("/")).mkdir(parents=True, exist_ok=True)
    return re.sub(PLACES, lambda found: f"{host}{found[0]}", script)


def run(host: Path, script: str, *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", placed(host, script), "script", *arguments],
        env={
            "PATH": f"{host}/programs:{os.environ['PATH']}",
            "FOLDER": f"{host}/folder",
            "PIP": f"{host}/pip",
            "LAKEHEAD": f"{host}/lakehead",
            "INSTALLED": f"{host}/installed",
            "CALLS": f"{host}/calls",
            **given,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def made_folder(host: Path, files: dict[str, bytes]) -> str:
    """Fill the folder of the package, as docs/terraform.md says; return what pins it."""
    folder = host / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    names = sorted(files)
    sums = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, check=True)
    (folder / "SHA256SUMS").write_bytes(sums.stdout)
    return hashlib.sha256(sums.stdout).hexdigest()


def install(host: Path, digest: str, wheel: str = ADDRESS) -> subprocess.CompletedProcess[str]:
    """Run the script with the package that user data, or an image's recipe, names."""
    (host / "etc/lakehead").mkdir(parents=True, exist_ok=True)
    (host / "etc/lakehead/package").write_text(f"{wheel}\n{digest}\nus-east-1\n")
    return run(host, INSTALL.read_text())


def provision(host: Path, digest: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Make the folder into an image, as Packer does by its recipe."""
    (host / "tmp").mkdir(exist_ok=True)
    (host / "tmp/lakehead-install").write_text(placed(host, INSTALL.read_text()))
    package = {"LAKEHEAD_WHEEL": ADDRESS, "PACKAGE_SHA256": digest, "PACKAGE_REGION": "us-east-1"}
    return run(host, PROVISION.read_text(), **{"DNF": "works", **package, **given})


FILES = {WHEEL: b"lakehead", "numpy-2.0-py3-none-any.whl": b"numpy"}


def test_a_host_installs_what_the_checksums_say(host: Path) -> None:
    digest = made_folder(host, FILES)
    done = install(host, digest)
    assert done.returncode == 0, done.stderr
    assert (host / "installed").read_text().split()[:2] == sorted(FILES)
    (host / "installed").unlink()
    assert install(host, digest).returncode == 0
    assert not (host / "installed").exists(), "it is there"


def test_a_package_of_the_image_is_installed_from_no_bucket(host: Path) -> None:
    digest = made_folder(host, FILES)
    assert install(host, digest, f"s3://packages-of-images/{WHEEL}").returncode == 0
    (host / "installed").unlink()
    shutil.rmtree(host / "folder")
    assert install(host, digest).returncode == 0
    assert not (host / "installed").exists(), "what its checksum says is there"


@pytest.mark.parametrize("changed", ["checksum", "name"])
def test_another_package_than_that_of_the_image_is_installed(host: Path, changed: str) -> None:
    other = WHEEL.replace("1.0", "2.0")
    digest = made_folder(host, {**FILES, other: b"lakehead"})
    assert install(host, digest).returncode == 0
    (host / "installed").unlink()
    if changed == "checksum":
        digest = made_folder(host, {**FILES, WHEEL: b"mended"})
    wheel = ADDRESS if changed == "checksum" else ADDRESS.replace(WHEEL, other)
    assert install(host, digest, wheel).returncode == 0
    installed = f"./{wheel.rpartition('/')[2]}{EXTRAS}"
    assert (host / "installed").read_text().split()[-1] == installed


@pytest.mark.parametrize("package", ["", f"{ADDRESS}\n", f"{ADDRESS}\n{'0' * 64}\n"])
def test_a_package_that_is_not_whole_is_not_installed(host: Path, package: str) -> None:
    (host / "etc/lakehead").mkdir(parents=True)
    (host / "etc/lakehead/package").write_text(package)
    assert run(host, INSTALL.read_text()).returncode != 0
    assert not (host / "opt/lakehead").exists()


def test_what_nobody_listed_is_not_installed(host: Path) -> None:
    digest = made_folder(host, FILES)
    (host / "folder" / "numpy-9.0-py3-none-any.whl").write_bytes(b"newer")
    (host / "folder" / "more").mkdir()
    (host / "folder" / "more" / "x y.whl").write_bytes(b"deeper")
    assert install(host, digest).returncode == 0
    assert [name for name in (host / "installed").read_text().split() if ".whl" in name] == [
        *sorted(FILES),
        f"./{WHEEL}{EXTRAS}",
    ]


@pytest.mark.parametrize("changed", [WHEEL, "numpy-2.0-py3-none-any.whl", "SHA256SUMS"])
def test_another_content_under_the_same_name_is_refused(host: Path, changed: str) -> None:
    digest = made_folder(host, FILES)
    with (host / "folder" / changed).open("ab") as file:
        file.write(b"0" * 64 + b"  x\n")
    done = install(host, digest)
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr
    assert not (host / "installed").exists()


def test_another_list_under_the_same_address_is_installed_anew(host: Path) -> None:
    first = made_folder(host, FILES)
    assert install(host, first).returncode == 0
    second = made_folder(host, {**FILES, "numpy-2.0-py3-none-any.whl": b"mended"})
    (host / "installed").unlink()
    assert install(host, second).returncode == 0
    assert (host / "installed").exists()


def test_a_wheel_by_https_is_held_to_its_checksum(host: Path) -> None:
    wheel = f"https://packages.example/{WHEEL}"
    assert install(host, "f" * 64, wheel).returncode == 0
    assert (host / "installed").read_text().split()[-1] == f"{wheel}#sha256={'f' * 64}"


def test_an_image_has_what_its_hosts_would_install(host: Path) -> None:
    digest = made_folder(host, FILES)
    done = provision(host, digest)
    assert done.returncode == 0, done.stderr
    as_user_data_has_it = files_written()["/etc/lakehead/package"]["content"].splitlines()
    kept = (host / "etc/lakehead/package").read_text().splitlines()
    assert (kept[0], kept[1], kept[2]) == (ADDRESS, digest, as_user_data_has_it[2])
    script = host / "usr/local/sbin/lakehead-install"
    assert script.stat().st_mode & 0o777 == 0o755
    # A host of it boots where no bucket can be reached.
    (host / "installed").unlink()
    shutil.rmtree(host / "folder")
    assert install(host, digest).returncode == 0
    assert not (host / "installed").exists()
    assert (host / "calls").read_text().count("dnf") == 1, "its cache is emptied"


def test_hosts_of_an_image_have_keys_names_and_journals_of_their_own(host: Path) -> None:
    own = ["etc/ssh/ssh_host_ed25519_key", "var/log/journal/0/system.journal", "etc/machine-id"]
    for name in own:
        (host / name).parent.mkdir(parents=True, exist_ok=True)
        (host / name).write_text("of the machine that the image was made on")
    assert provision(host, made_folder(host, FILES)).returncode == 0
    assert [name for name in own if (host / name).exists()] == ["etc/machine-id"]
    assert (host / "etc/machine-id").read_text() == "", "systemd makes one where it finds it empty"
    assert not (host / "tmp/lakehead-install").exists()
    assert (host / "calls").read_text().splitlines()[-1] == "cloud-init clean --logs"


@pytest.mark.parametrize("agent", ["", "yes"])
def test_an_image_has_the_agent_of_cloudwatch_where_that_is_wanted(host: Path, agent: str) -> None:
    assert provision(host, made_folder(host, FILES), CLOUDWATCH_AGENT=agent).returncode == 0
    assert ("install" in (host / "calls").read_text()) == bool(agent)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"PACKAGE_SHA256": "0" * 64}, id="another package than the checksum's"),
        pytest.param({"FOREIGN": "yes"}, id="a package of another architecture"),
        pytest.param({"BOOTED": "1"}, id="a machine that has not booted well"),
        pytest.param({"DNF": "", "CLOUDWATCH_AGENT": "yes"}, id="an agent that cannot be had"),
    ],
)
def test_no_image_is_made_of(host: Path, given: dict[str, str]) -> None:
    assert provision(host, made_folder(host, FILES), **given).returncode != 0
    assert "clean" not in (host / "calls").read_text()


def test_an_image_is_made_where_cloud_init_warns(host: Path) -> None:
    assert provision(host, made_folder(host, FILES), BOOTED="2").returncode == 0


def test_airflow_verifies_before_it_installs() -> None:
    script = files_of_airflow()["/usr/local/sbin/airflow-install"]["content"]
    install = script.index("/opt/airflow/bin/pip install")
    assert 0 < script.index("sha256sum --check --quiet --strict SHA256SUMS") < install
    assert 0 < script.index("rm -f --") < install


@pytest.mark.parametrize(
    ("disk", "mounted", "fails", "is_given"),
    [
        ("nvme1n1", "", "", True),
        ("nvme10n1", "", "", True),
        ("nvme0n1", "", "", False),  # the one it runs from
        ("nvme1n1", "/data", "", False),
        ("nvme1n1", "", "yes", False),  # it is not known what it runs from
    ],
)
def test_nodes_get_data_disks_and_never_the_machine_s_own(
    host: Path, disk: str, mounted: str, fails: str, is_given: bool
) -> None:
    script = files_written()["/usr/local/sbin/lakehead-is-data-disk"]["content"]
    done = run(host, script, disk, MOUNTED=mounted, FAILS=fails)
    assert (done.returncode == 0) == is_given, done.stderr


@pytest.mark.parametrize(
    ("kernel", "capabilities", "is_given"),
    [
        ("6.1.158-180.294.amzn2023.x86_64", "CAP_SYS_ADMIN", True),
        ("6.4.0", "CAP_SYS_ADMIN", True),
        ("5.10.1-x", "CAP_SYS_ADMIN", True),
        ("6.5.0", "CAP_SYS_ADMIN", False),
        ("6.12.40-63.114.amzn2023.x86_64", "CAP_SYS_ADMIN", False),
        ("7.0-rc1", "CAP_SYS_ADMIN", False),
        ("6.1.158", "", False),
    ],
)
def test_a_capability_is_given_where_the_kernel_wants_it_for_reservations(
    host: Path, kernel: str, capabilities: str, is_given: bool
) -> None:
    path = "/usr/local/sbin/lakehead-capabilities"
    script = files_written(capabilities=capabilities)[path]["content"]
    done = run(host, script, KERNEL=kernel)
    assert done.returncode == 0, done.stderr
    dropped_in = host / "etc/systemd/system/lakehead.service.d/reservations.conf"
    assert dropped_in.exists() == is_given
    if is_given:
        assert "AmbientCapabilities=CAP_SYS_ADMIN" in dropped_in.read_text()


@pytest.mark.parametrize("groups", ["[]", '["lakehead-wal"]'])
def test_nodes_are_in_no_group_that_opens_other_disks(groups: str) -> None:
    config = yaml.safe_load(user_data(groups=groups))
    (own,) = (one for one in config["users"] if one != "default")
    assert own["groups"] == config["groups"] == yaml.safe_load(groups)
    unit = files_written()["/etc/systemd/system/lakehead.service"]["content"]
    assert "SupplementaryGroups" not in unit
    assert "disk" not in {*config["groups"]}
    commands = [" ".join(one) for one in config["runcmd"]]
    assert commands[-1].startswith("systemctl enable --now")


def test_udev_reads_its_rule_when_the_group_is_there() -> None:
    """A rule that it read before names an unknown group, which a reload does not mend."""
    config = yaml.safe_load(user_data())
    rules = "/etc/udev/rules.d/"
    assert not any(path.startswith(rules) for path in files_written())
    (rule,) = (path for path in files_written() if path.endswith(".rules"))
    commands = [" ".join(one) for one in config["runcmd"]]
    assert commands[0] == f"install --mode=0644 {rule} {rules}99-lakehead.rules"
    assert commands[1] == "udevadm control --reload"
    assert commands[2].startswith("udevadm trigger")


@pytest.mark.parametrize(
    ("private", "devices"), [("yes", ""), ("no", "block-blkext rw")], ids=["object", "block"]
)
def test_systemd_understands_the_units(tmp_path: Path, private: str, devices: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("there is no systemd-analyze here")
    written = files_written(private_devices=private, devices=devices)
    units = {
        Path(path).name: file["content"]
        for path, file in written.items()
        if path.startswith("/etc/systemd/system/")
    }
    assert {"lakehead.service", "lakehead-settings.service", "lakehead-settings.timer"} <= set(
        units
    )

    def verified(folder: str, name: str, unit: str) -> str:
        # Programs are on a host and not here. It ends with 0 whatever it finds.
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / name
        path.write_text(re.sub(r"(Exec\w+=\+?)\S+", r"\1/bin/true", unit))
        command = [analyze, "verify", "--man=no", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr

    for name, unit in sorted(units.items()):
        assert verified("whole", name, unit) == ""
        assert verified("damaged", name, unit.replace("\nDescription=", "\nDescriptio=")) != ""
