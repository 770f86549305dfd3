"""`make tf-provider`: build the AWS provider 6 where Terraform's registry cannot be reached.

Go's module proxy has the provider's source under a pseudo-version. It is cut down to the services
that infra/terraform uses: all 264 clients would take hours to compile. What is built lies in the
user's cache, in a filesystem mirror beside the provider 5 of the mirror that is there already.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.terraform.terraform import BUILT, NotHere, mirror, providers

MODULE = "github.com/hashicorp/terraform-provider-aws"
VERSION = "v1.60.1-0.20260602190131-5f2286d6d836"
"""The newest that Go's proxy lists: its source names itself 6.47.1."""

SERVICES = frozenset(
    {"autoscaling", "cloudwatch", "ec2", "elbv2", "events", "glue", "iam", "kms", "logs", "meta"}
    | {"route53", "s3", "secretsmanager", "ssm", "sts"}
)
"""Packages of the provider with the resources of infra/terraform."""

BUILD_SECONDS = 7200
_PACKAGES = Path("internal/provider/sdkv2/service_packages_gen.go")
_CLIENTS = Path("internal/conns/awsclient_gen.go")


def main() -> int:
    try:
        if shutil.which("go") is None:
            raise NotHere("go is not on PATH: install it (1.26 or newer), then run again.")
        given = mirror()
        with tempfile.TemporaryDirectory(prefix="lakehead-tf-provider-") as folder:
            source = Path(folder) / "source"
            fetch(source)
            cut_services(source)
            cut_clients(source)
            release = (source / "version" / "VERSION").read_text().strip()
            made = place(BUILT, release) / f"terraform-provider-aws_v{release}_x5"
            # The go.mod of the source lists modules that no package needs any more.
            go(source, "build", "-mod=mod", "-ldflags=-s -w", f"-o={made}", ".")
        if given != BUILT:
            for other in providers(given):
                for there in given.glob(f"*/hashicorp/aws/{other}/*"):
                    link = place(BUILT, other)
                    link.rmdir()
                    link.symlink_to(there)
    except NotHere as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{made}: 'make tf-test' tries it.")
    return 0


def place(folder: Path, release: str) -> Path:
    """Return the folder of a release for this machine in a mirror, empty."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    at = folder / "registry.terraform.io/hashicorp/aws" / release / f"linux_{machine}"
    if at.is_symlink():
        at.unlink()
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir(parents=True)
    return at


def go(folder: Path, *arguments: str) -> str:
    """Run Go and return its output. Raises NotHere."""
    done = subprocess.run(
        ["go", *arguments], cwd=folder, stdout=subprocess.PIPE, text=True, check=False,
        timeout=BUILD_SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise NotHere(f"go {arguments[0]} failed: {done.stdout.strip()}")
    return done.stdout


def fetch(folder: Path) -> None:
    """Copy the provider's source from Go's cache of modules, which cannot be written."""
    found = json.loads(go(Path.cwd(), "mod", "download", "-json", f"{MODULE}@{VERSION}"))
    shutil.copytree(found["Dir"], folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*/")):
        path.chmod(0o755)


def cut_services(source: Path) -> None:
    """Leave the packages of SERVICES in the provider's list, and no others."""
    of_package = re.compile(r'.*internal/service/(\w+)"|\s+(\w+)\.ServicePackage\(ctx\)')

    def stays(line: str) -> bool:
        found = of_package.match(line)
        return found is None or (found[1] or found[2]) in SERVICES

    listed = source / _PACKAGES
    lines = listed.read_text().splitlines(keepends=True)
    listed.write_text("".join(filter(stays, lines)))


def cut_clients(source: Path) -> None:
    """Leave the methods for clients that the remaining packages call, with their imports."""
    used = set[str]()
    for file in sources_in_use(source):
        if file != source / _CLIENTS:
            used |= set(re.findall(r"\.(\w+Client)\(", file.read_text()))
    head, *methods = re.split(r"(?m)^(?=func \()", (source / _CLIENTS).read_text())
    kept = [method for method in methods if re.findall(r"\) (\w+)\(", method)[0] in used]

    def stays(line: str) -> bool:
        found = re.match(r'\s+(?:(\w+) )?"github.com/aws/aws-sdk-go-v2/service/([\w/]+)"', line)
        name = found and (found[1] or found[2].rpartition("/")[2])
        return name is None or any(f"*{name}." in method for method in kept)

    lines = head.splitlines(keepends=True)
    (source / _CLIENTS).write_text("".join([*filter(stays, lines), *kept]))


def sources_in_use(source: Path) -> Iterator[Path]:
    """Yield the files of all packages of the provider that its program imports."""
    seen, waiting = set[Path](), [source]
    while waiting:
        package = waiting.pop()
        if package in seen:
            continue
        seen.add(package)
        for file in package.glob("*.go"):
            if not file.name.endswith("_test.go"):
                imported = re.findall(rf'"{re.escape(MODULE)}/([\w./-]+)"', file.read_text())
                waiting += [source / one for one in imported]
                yield file


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
