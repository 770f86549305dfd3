"""`make docs-site`: the pages of docs/ as a site in build/site, with search, and llms.txt. With a
version it is put beside those of other versions, on the branch `docs-site`, by mike.

mkdocs and its theme have an environment of their own, in the user's cache, made at the first use
from requirements/site.txt. The site loads nothing from other hosts.
"""

import os
import subprocess
import sys
from pathlib import Path

from bench.own_environment import NotInstalled, environment_of

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
BRANCH = "docs-site"
NEWEST = "latest"
_BUILD_S = 600


def build(site: Path = SITE) -> int:
    """Build the site and return mkdocs' status: any warning is an error. Raises NotInstalled."""
    return _run("mkdocs", "build", "--quiet", "--site-dir", site)


def release(version: str, repository: Path = ROOT) -> int:
    """Build the site as that of a version, which is the newest one from now on, and commit it to
    the branch `BRANCH` of a clone of this repository. Other versions stay as they are. Returns
    mike's status. Raises NotInstalled.
    """
    given = ("--branch", BRANCH, "--update-aliases", "--alias-type", "copy", version, NEWEST)
    status = _run("mike", "deploy", *given, folder=repository)
    return status or _run("mike", "set-default", "--branch", BRANCH, NEWEST, folder=repository)


def _run(tool: str, *arguments: str | Path, folder: Path = ROOT) -> int:
    programs = environment_of("mkdocs", "site") / "bin"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["NO_MKDOCS_2_WARNING"] = "true"
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"  # mike looks for mkdocs
    command: list[str | Path] = [programs / tool, *arguments]
    command += ["--config-file", folder / "mkdocs.yml"]
    done = subprocess.run(  # noqa: S603 - mkdocs and mike, and folders
        command, cwd=folder, env=environment, check=False, timeout=_BUILD_S
    )
    return done.returncode


def main(version: str = "") -> int:
    """Build the site, and print where it is."""
    try:
        status = release(version) if version else build()
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    if not status and version:
        print(f"branch {BRANCH}: push it to where the site is served from")
    elif not status:
        print(f"{SITE}: python -m http.server --directory {SITE}")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
