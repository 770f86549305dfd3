"""`make docs-site`: the pages of docs/ as a site in build/site, with search, and llms.txt.

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
_BUILD_S = 600


def build(site: Path = SITE) -> int:
    """Build the site and return mkdocs' status: any warning is an error. Raises NotInstalled."""
    program = environment_of("mkdocs", "site") / "bin" / "mkdocs"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["NO_MKDOCS_2_WARNING"] = "true"
    command: list[str | Path] = [
        program,
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        ROOT / "mkdocs.yml",
    ]
    done = subprocess.run(  # noqa: S603 - mkdocs, and folders
        [*command, "--site-dir", site], env=environment, check=False, timeout=_BUILD_S
    )
    return done.returncode


def main() -> int:
    """Build the site, and say where it is."""
    try:
        status = build()
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    if not status:
        print(f"{SITE}: python -m http.server --directory {SITE}")
    return status


if __name__ == "__main__":
    sys.exit(main())
