"""A connector as a task: what there is to read now, from where it was last."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import BaseOperator, Context

from lakehead.connectors.airflow.errors import airflow_errors
from lakehead.connectors.airflow.hooks import LakeheadHook
from lakehead.connectors.airflow.lineage import connector_lineage
from lakehead.connectors.airflow.progress import ProgressLines

if TYPE_CHECKING:
    from lakehead.connectors.connector import Connector
    from lakehead.connectors.pipelines import Plan
    from lakehead.connectors.settings import ConnectorSettings

_NAMES_MAX = 20


class LakeheadConnectOperator(BaseOperator):
    """Runs a connector once, and returns its result.

    :param config: the content of a connector's TOML file, as a mapping; see
        docs/connect.md. (templated)
    :param config_file: or that file, on the worker. (templated)
    :param lakehead_conn_id: the connection whose brokers, with login and password, are meant where
        the config has no ``kafka`` of its own; its storage settings hold while the task runs.
    :param dry_run: report the input that would be read, and write nothing.

    Killed at any moment and run again, each record is in its topic once. A second run of the same
    connector ends the first: use ``max_active_tis_per_dag=1``.
    """

    template_fields: Sequence[str] = ("config", "config_file", "lakehead_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json"}
    ui_color = "#d7ecf5"

    def __init__(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        config_file: str | None = None,
        lakehead_conn_id: str = LakeheadHook.default_conn_name,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (config is None) == (config_file is None):
            raise ValueError("a connector needs config, or config_file: one of them")
        self.config = config
        self.config_file = config_file
        self.lakehead_conn_id = lakehead_conn_id
        # BaseOperator has a method dry_run.
        self.is_dry_run = dry_run
        self._connector: Connector | None = None
        self._settings: ConnectorSettings | None = None
        self._servers = ""
        self._records = 0
        self._is_killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the connector."""
        del context
        hook = LakeheadHook(self.lakehead_conn_id)
        with hook.environment(), airflow_errors():
            self._connector = self._opened(hook)
            if self._is_killed:
                self._connector.stop()
            if self.is_dry_run:
                return self._described(self._connector.plan())
            fields = self._connector.run().as_fields()
        self._records = fields["records"]
        words = ", ".join(f"{name} {value}" for name, value in fields.items())
        self.log.info("%s", words)
        if self._is_killed:
            raise AirflowException(
                "the connector was cancelled: committed records are kept, and a retry resumes"
            )
        return fields

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage from the source to its topic."""
        del task_instance
        if self._settings is None:
            return None
        return connector_lineage(
            self._settings, bootstrap_servers=self._servers, records=self._records
        )

    def on_kill(self) -> None:
        """Have the run end: what it has read is committed, the rest is for the next try."""
        self._is_killed = True
        if self._connector is not None:
            self._connector.stop()

    def _opened(self, hook: LakeheadHook) -> "Connector":
        from pathlib import Path

        from lakehead.connectors.connector import Connector
        from lakehead.connectors.runtime.settings import checked_settings, dotted, load_settings
        from lakehead.connectors.settings import ConnectorSettings
        from lakehead.storage.clock import SystemClock

        if self.config_file is not None:
            settings = load_settings(Path(self.config_file), ConnectorSettings)
        elif isinstance(self.config, Mapping):
            settings = checked_settings(self.config, ConnectorSettings, "config")
        else:
            raise AirflowFailException("config is rendered to something else than a mapping")
        kafka = None if settings.kafka else hook.kafka_config()
        named = kafka or dotted(settings.kafka, "kafka")
        self._settings, self._servers = settings, str(named.get("bootstrap.servers", ""))
        lines = ProgressLines(self.log, settings.name)
        return Connector(
            settings,
            SystemClock(),
            name=self.config_file or "config",
            kafka=kafka,
            on_progress=lambda progress: lines(progress.done_bytes, progress.total_bytes),
        )

    def _described(self, plan: "Plan") -> dict[str, Any]:
        left = sum(work.size_bytes for work in plan.works)
        self.log.info("would read %s partitions, %s %s", len(plan.works), left, plan.unit)
        for work in plan.works[:_NAMES_MAX]:
            self.log.info("would read: %s", work.name)
        if plan.first_trouble is not None:
            self.log.warning("cannot be a record: %s", plan.first_trouble)
        return {"partitions": len(plan.works), plan.unit: left}
