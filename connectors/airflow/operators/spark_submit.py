"""A job as a Spark application of its own, by the operator of Airflow's Spark provider."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException
from airflow.sdk import BaseOperator, Context

from lakehead.connectors.airflow import spark_application
from lakehead.connectors.airflow.errors import checked_if_taken
from lakehead.connectors.airflow.hooks import LakeheadHook
from lakehead.connectors.airflow.jobs import checked_job
from lakehead.connectors.airflow.spark_secrets import executor_properties

if TYPE_CHECKING:
    Submit = BaseOperator
else:
    try:
        from airflow.providers.apache.spark.operators.spark_submit import (
            SparkSubmitOperator as Submit,
        )
    except ImportError as error:
        raise AirflowOptionalProviderFeatureException(
            f"spark-submit needs Airflow's Spark provider ({error}): pip install "
            "apache-airflow-providers-apache-spark, or use runner=spark or connect"
        ) from None

_OURS = ("lakehead_conn_id", "options", "item")


class LakeheadSparkSubmitOperator(Submit):
    """Runs a job, or one item of it, as a Spark application: a SparkSubmitOperator.

    :param job: see LakeheadJobOperator.
    :param options: the job's own options, by name. (templated)
    :param item: one that LakeheadPlanOperator returned, for ``expand``; left out: the whole job.
    :param lakehead_conn_id: the connection of the cluster. (templated)
    :param kwargs: those of SparkSubmitOperator: ``conn_id``, ``conf``, ``py_files``,
        ``executor_memory``, ``packages`` and the like.

    The result is in the task's log, where the driver's output goes.
    """

    template_fields: Sequence[str] = (*Submit.template_fields, *_OURS)

    def __init__(
        self,
        *,
        job: str,
        options: Mapping[str, Any] | None = None,
        item: Mapping[str, Any] | None = None,
        lakehead_conn_id: str = LakeheadHook.default_conn_name,
        wait_s: float = 0.0,
        if_taken: str = "skip",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("application", str(Path(spark_application.__file__)))
        kwargs.setdefault("name", f"lakehead {job}")
        super().__init__(**kwargs)
        self.job = checked_job(job)
        self.options = dict(options or {})
        self.item = item
        self.lakehead_conn_id = lakehead_conn_id
        self.wait_s = wait_s
        self.if_taken = checked_if_taken(if_taken)

    def execute(self, context: Context) -> Any:
        """Submit the application, and wait for its end."""
        hook = LakeheadHook(self.lakehead_conn_id)
        arguments = {
            "job": self.job,
            "path": hook.path,
            "options": self.options,
            "wait_s": self.wait_s,
            "if_taken": self.if_taken,
        }
        if self.item is not None:
            arguments["item"] = dict(self.item)
        submit: Any = self
        submit.application_args = [json.dumps(arguments)]
        with hook.environment(), executor_properties(hook.storage_settings) as properties:
            # A file of the user's own is to say how executors reach the store.
            submit.properties_file = submit.properties_file or properties
            return super().execute(context)
