"""`make upkeep-day`: a day of the DAGs' schedules on a living cluster, in compressed time, with
tasks killed at random. Status 1 on any broken promise.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.kills.kill_campaign import KEYED, PLAIN, TABLE, KillCampaign, campaign
from tests.kills.kill_checks import faults
from tests.support.topic_clients import set_config
from tests.upkeep_day.day_samples import DaySamples
from tests.upkeep_day.day_schedule import DaySchedule

FRESHNESS_S = 3600
RETENTION_S = 2 * 3600
LEASE_S = 5 * 60
OBJECTS_MAX = 150
"""Of a partition, whatever the hour."""


def main() -> None:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.upkeep_day", description=__doc__)
    parser.add_argument("--hours", type=float, default=24, help="of the day")
    parser.add_argument("--minutes", type=float, default=12, help="of ours that it lasts")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakehead-day-") as name:
        found = day(Path(name), hours=given.hours, minutes=given.minutes, seed=given.seed)
    print("\n".join(found) if found else "bounded, fresh, nothing twice, nothing lost, no leak")
    sys.exit(bool(found))


def day(folder: Path, *, hours: float, minutes: float, seed: int) -> list[str]:
    """Run a day, print its figures, and return every broken promise, a line each."""
    scale = hours * 60 / minutes
    with campaign(folder, seed) as cluster:
        _configure(cluster, scale)
        _set_airflow(folder, cluster.store, scale)
        schedule = DaySchedule(folder, seed, scale=scale, hours=hours, lease_s=LEASE_S / scale)
        schedule.begin()
        samples = DaySamples(cluster.store, schedule.clock, TABLE)
        samples.start()
        schedule.run()
        samples.finish()
        cluster.settle()
        schedule.finish("lakehead_sweep")
        _tell(schedule, samples, cluster)
        return [
            *(f"broken {n} times: {one}" for one, n in schedule.tally.broken.most_common(5)),
            *_unbounded(samples),
            *_stale(samples),
            *faults(cluster),
        ]


def _configure(cluster: KillCampaign, scale: float) -> None:
    """Have the topics' times in the day's time."""

    def ms(seconds: float) -> str:
        return str(max(1000, round(seconds * 1000 / scale)))

    wanted: Mapping[str, Mapping[str, str]] = {
        TABLE: {
            "retention.bytes": "-1",
            "retention.ms": ms(RETENTION_S),
            "lakehead.table.freshness.ms": ms(FRESHNESS_S),
            "lakehead.table.optimize.interval.ms": ms(3600),
            "lakehead.table.vacuum.interval.ms": ms(24 * 3600),
        },
        KEYED: {"delete.retention.ms": ms(3600)},
    }
    for topic, configs in wanted.items():
        for name, value in configs.items():
            set_config(cluster.broker.server, topic, name, value)


def _set_airflow(folder: Path, store: Path, scale: float) -> None:
    """Tell Airflow, in this process and the tasks', of the cluster and of what DAGs are to do
    otherwise: their params have no unit of the day's time.
    """
    grace_s = max(1, round(15 * 60 / scale))
    params = {"lakehead_sweep": {"grace_s": grace_s}, "lakehead_compact_objects": {"target_mib": 1}}
    os.environ |= {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW_CONN_LAKEHEAD_DEFAULT": json.dumps(
            {"conn_type": "lakehead", "extra": {"path": f"file:{store}"}}
        ),
        "AIRFLOW_VAR_LAKEHEAD_DAGS": json.dumps({"params": params}),
    }


def _unbounded(samples: DaySamples) -> list[str]:
    return [
        f"{topic}: a partition had {max(by_hour.values())} objects, more than {OBJECTS_MAX}"
        for topic, by_hour in samples.objects.items()
        if max(by_hour.values()) > OBJECTS_MAX
    ]


def _stale(samples: DaySamples) -> list[str]:
    worst = max(samples.stale)
    if worst <= FRESHNESS_S:
        return []
    return [f"the table was {worst:.0f} s of the day behind, more than {FRESHNESS_S}"]


def _tell(schedule: DaySchedule, samples: DaySamples, cluster: KillCampaign) -> None:
    tally = schedule.tally
    for dag, runs in sorted(tally.runs.items()):
        failed = tally.failed_runs[dag]
        print(f"{dag}: {runs} runs of {tally.ticks[dag]} times, {failed} failed")
    for name, tries in sorted(tally.tries.items()):
        print(f"  {name}: {tries} tries, {tally.kills[name]} killed")
    tries, kills = tally.tries.total(), tally.kills.total()
    print(f"{tally.runs.total()} runs, {tries} tries of tasks, {kills} ended by signal 9")
    for said, times in tally.said.most_common(12):
        print(f"  {times} times {said}")
    for topic in (TABLE, KEYED, PLAIN):
        by_hour = samples.objects[topic]
        series = " ".join(str(by_hour[hour]) for hour in sorted(by_hour))
        print(f"{topic}: most objects of a partition by hour: {series}")
    series = " ".join(f"{samples.stale_s[hour] / 60:.0f}" for hour in sorted(samples.stale_s))
    print(f"minutes of the day that the table was behind at most, by hour: {series}")
    ranked = sorted(samples.stale)
    half, most = ranked[len(ranked) // 2], ranked[int(len(ranked) * 0.99)]
    print(f"behind: median {half / 60:.1f} min, 99 % {most / 60:.1f}, most {ranked[-1] / 60:.1f}")
    print(f"{len(cluster.history.acknowledged)} records of the table's topic acknowledged")


if __name__ == "__main__":
    main()
