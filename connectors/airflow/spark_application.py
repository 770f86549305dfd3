"""The program that `spark-submit` starts: a job on the driver, its items on executors.

The driver needs `lakehead[lake]` and no Airflow. Its only argument is a JSON object with `job`,
`path`, `options` and, for one item of a mapped job, `item`; credentials of the store are in its
environment. Its result is its last line of output, behind `lakehead figures: `.
"""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

FIGURES = "lakehead figures: "

_log = logging.getLogger("lakehead")


def run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run the job that the argument names in the driver's session, and return its result.

    Raises what the job raises.
    """
    from pyspark.sql import SparkSession

    from lakehead.connectors.airflow.jobs import Chunk, checked_job, job_named
    from lakehead.connectors.airflow.progress import ProgressLines
    from lakehead.lake.jobs.spark_runner import spark_runner
    from lakehead.storage.jobs.job import JobContext, Unit, sum_of_fields
    from lakehead.storage.jobs.options import parsed

    session = SparkSession.builder.appName("lakehead").getOrCreate()
    try:
        job = job_named(checked_job(arguments["job"]))
        item = arguments.get("item")
        context = JobContext(
            path=arguments["path"],
            runner=spark_runner(session),
            on_progress=ProgressLines(_log, job.name),
            log=_log,
            wait_s=float(arguments.get("wait_s", 0)),
            if_taken=arguments.get("if_taken", "skip"),
            is_local=False,
            is_part=item is not None,
        )
        options = parsed(job.name, job.options, arguments.get("options", {}))
        planned = job.plan(context, options)
        units: Sequence[Unit] = planned.units
        fields = {} if item is not None else planned.as_fields(is_dry_run=False)
        if item is not None:
            chunk = Chunk.of_json(item)
            units = [unit for unit in units if chunk.has(unit.key)]
        if units or item is None:
            result = job.run(context, options, units)
            result.check()
            fields = sum_of_fields(fields, result.as_fields())
        job.finish(fields)
        return fields
    finally:
        session.stop()


def main() -> None:
    """Run what the first argument says. Status 1 with one line on an error of ours."""
    from lakehead.storage.errors import LakeheadError

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    _log.setLevel(logging.INFO)
    try:
        fields = run(json.loads(sys.argv[1]))
    except LakeheadError as error:
        _log.error("%s: %s", type(error).__name__, " ".join(str(error).split()))
        sys.exit(1)
    _log.info("%s%s", FIGURES, json.dumps(fields))


if __name__ == "__main__":
    main()
