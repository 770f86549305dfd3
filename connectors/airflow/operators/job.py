"""A whole job in one task."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import Context

from lakehead.connectors.airflow.jobs import checked_job, job_named
from lakehead.connectors.airflow.operators.base import LakeheadOperator, with_table_events


class LakeheadJobOperator(LakeheadOperator):
    """Plans a job, runs it, and returns its result.

    :param job: compact, verify and the like, see docs/airflow-provider.md.
    :param options: the job's own options, by name. (templated)

    The result is logged and goes to XCom.
    """

    template_fields: Sequence[str] = (*LakeheadOperator.template_fields, "options")
    template_fields_renderers: ClassVar[dict[str, str]] = {"options": "json"}

    def __init__(
        self, *, job: str, options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**with_table_events(job, kwargs))
        self.job = checked_job(job)
        self.options = dict(options or {})

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job."""
        from lakehead.storage.jobs.job import Fields, sum_of_fields
        from lakehead.storage.jobs.options import parsed

        with self._work(self.job, context) as place:
            job = job_named(self.job)
            options = parsed(job.name, job.options, self.options)

            def work() -> Fields:
                planned = job.plan(place, options)
                known = planned.as_fields(is_dry_run=self.is_plan_only)
                if self.is_plan_only:
                    return known
                result = job.run(place, options, planned.units)
                result.check()
                return sum_of_fields(known, result.as_fields())

            fields = self._breaking_in(work)
        self._log_fields(f"{self.job}, dry run" if self.is_plan_only else self.job, fields)
        self._finish(job, fields)
        return fields
