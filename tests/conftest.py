"""What every test gets: which tests share a worker when several run at once, and an S3 server."""

import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.repetitions import IS_LONG, examples
from tests.support.versitygw import s3_process, s3_server

__all__ = ["s3_process", "s3_server"]

_ROOT = Path(__file__).parent

TARGETS = {
    **{name: name for name in ("examples", "integration", "property", "spark", "unit")},
    "airflow": "airflow-test",
    "aws_day": "trials",
    "changes": "trials",
    "checker": "trials",
    "flood": "trials",
    "operations_week": "trials",
    "connectors": "connect-test",
    "deployment": "deploy-test",
    "rolling": "roll-test",
    "terraform": "tf-cycle",
    "test_lost_region": "game-day",
    "test_standby": "game-day",
    "test_standby_size": "game-day",
    "test_stall_watchdog": "stalls",
    "test_many_producers": "producers",
    "test_airflow_instance": "airflow-test",
    "test_docs_site": "docs-site",
}
"""Targets of the Makefile that run slow tests, by the tests' folder or module."""

# How fast the machine is decides nothing. A short run tries the same examples each time, so that a
# change is judged by itself; long runs look for new ones.
settings.register_profile(
    "any",
    max_examples=examples(100),
    deadline=None,
    derandomize=not IS_LONG,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any")

RERUNS_MAX = 5
"""Tests that one run may try again: more of them are a defect, not the machine."""

# A JVM of these tests lives for seconds: its optimizing compiler and its parallel collector take a
# third of the time and give nothing back. Slow tests have a JVM as users have it.
if not IS_LONG:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


class ShortNames(MetaPathFinder):
    """Refuses the names of folders at the top of a checkout, which are parts of `lakehead`: a test
    that names a module by the short one would change a copy of it that nothing else uses.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in {"broker", "connectors", "lake", "storage"}:
            raise ImportError(f"{name} is imported as lakehead.{name}")


sys.meta_path.insert(0, ShortNames())


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark tests share one worker, and so one session; `serial` tests share another group, and so
    do tests that share what their module sets up. What is `slow` is run by the target of the
    Makefile that its folder has, which sets SLOW.
    """
    for item in items:
        folder = item.path.relative_to(_ROOT).parts[0] if _ROOT in item.path.parents else ""
        if item.get_closest_marker("slow") is not None and not IS_LONG:
            reason = f"takes too long for every run: make {slow_target(item.path)}"
            item.add_marker(pytest.mark.skip(reason=reason))
        if folder == "spark":
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.get_closest_marker("serial") is not None:
            item.add_marker(pytest.mark.xdist_group("serial"))
        elif item.get_closest_marker("xdist_group") is None and _shares_set_up(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def slow_target(path: Path) -> str:
    """Return the target of the Makefile that runs the slow tests of a file."""
    return TARGETS.get(path.stem) or TARGETS[path.relative_to(_ROOT).parts[0]]


def _shares_set_up(item: pytest.Item) -> bool:
    """Return true if a test uses a fixture of its module."""
    found = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    return any(one.scope == "module" for fixtures in found for one in fixtures)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the first failure of each test that was tried again: it passed, and is worth a look."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"tried again: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run in which more than a few tests were tried again."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reruns = len(reporter.stats.get("rerun", [])) if reporter is not None else 0
    if reruns > RERUNS_MAX and session.exitstatus == pytest.ExitCode.OK:
        print(f"\n{reruns} tests were tried again, at most {RERUNS_MAX} may be", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _own_event_log() -> Iterator[None]:
    """A command that runs in the test's process writes its events to what is standard error then;
    the tests after it have another.
    """
    yield
    structlog.reset_defaults()
