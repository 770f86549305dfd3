"""`make audit`: known vulnerabilities of the pinned packages, and unsafe calls in the tree.

pip-audit looks packages up in a database on the network, in an environment of its own. Where that
cannot be reached, one line says so and the status is 2: "nothing found" would not be a result.
bandit's checks are ruff's S rules, which `make lint` holds, too.
"""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / "build" / "audit"
LOCKED = ("base.txt", "lake.txt")
FOLDERS = ("broker", "storage", "lake", "connectors", "dags", "pyspark_lakehead")
FOUND, UNREACHABLE = 1, 2
Done = subprocess.CompletedProcess[str]


def main() -> int:
    """Run both; return 0 if neither has found anything, 1 if one has, 2 without the database."""
    unsafe = _unsafe_calls()
    return unsafe or _vulnerabilities()


def _unsafe_calls() -> int:
    ruff = Path(sys.executable).with_name("ruff")
    rules = ("--select", "S", "--ignore", "S101,S311")
    status = subprocess.run(
        [ruff, "check", "--quiet", *rules, *FOLDERS], cwd=ROOT, check=False
    ).returncode
    print(f"audit: unsafe calls (S rules): {'found' if status else 'none'}", flush=True)
    return FOUND if status else 0


def _vulnerabilities() -> int:
    audit = ENVIRONMENT / "bin" / "pip-audit"
    if not audit.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        pip = str(ENVIRONMENT / "bin" / "pip")
        done = _run(pip, "install", "--quiet", "pip-audit==2.10.1")
        if done.returncode:
            return report("pip-audit", done)
    status = 0
    for name in LOCKED:
        file = f"requirements/{name}"
        # Hashed requirements name all packages with their versions: nothing is resolved.
        done = _run(str(audit), "--strict", "--disable-pip", "--require-hashes", "-r", file)
        status = report(file, done) or status
        if status == UNREACHABLE:
            break
    return status


def report(name: str, done: Done) -> int:
    """Print the outcome of a look-up; return its status."""
    if done.returncode == 0:
        print(f"audit: {name}: no known vulnerabilities", flush=True)
        return 0
    if done.stdout.strip():  # a table of what was found
        print(f"audit: {name}: known vulnerabilities\n{done.stdout.rstrip()}", flush=True)
        return FOUND
    reason = (done.stderr.strip().splitlines() or ["without a reason"])[-1]
    print(
        "audit: known vulnerabilities were not looked up, the database cannot be reached"
        f" ({name}: {reason})",
        flush=True,
    )
    return UNREACHABLE


def _run(*command: str) -> Done:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(main())
