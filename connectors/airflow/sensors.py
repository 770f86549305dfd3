"""Sensors that wait for a topic or its table, by the cluster's metadata alone.

Deferrable (the triggerer polls for all of them at once, see
`lakehead.connectors.airflow.triggers`), or by poking. A sensor returns the topic and the offsets
that met its condition.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from lakehead.connectors.airflow.conditions import (
    Condition,
    LagUnder,
    TableFresh,
    TopicOffset,
    TopicTime,
    decoded,
    encoded,
    of_its_topic,
)
from lakehead.connectors.airflow.features import STATE_STORES

if TYPE_CHECKING:
    from airflow.sdk import Context


DEFERRABLE = conf.getboolean("operators", "default_deferrable", fallback=False)


class ConditionSensor(BaseSensorOperator):
    """Waits until a condition holds. Those below say which.

    :param lakehead_conn_id: the connection of the cluster.
    :param deferrable: whether the triggerer waits, and no worker; what Airflow's setting
        ``[operators] default_deferrable`` says if left out.

    ``poke_interval``, ``timeout``, ``mode``, ``soft_fail`` are as all sensors have them.
    """

    template_fields: Sequence[str] = ("lakehead_conn_id", "topic")
    ui_color = "#d8ecf3"

    def __init__(
        self,
        *,
        topic: str,
        lakehead_conn_id: str = "lakehead_default",
        deferrable: bool = DEFERRABLE,
        poke_interval: timedelta | float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.topic = topic
        self.lakehead_conn_id = lakehead_conn_id
        self.deferrable = deferrable
        self._waits_for: Condition | None = None

    @abstractmethod
    def condition(self) -> Condition:
        """Return what is waited for, by the fields as they are rendered."""

    def poke(self, context: "Context") -> PokeReturnValue:
        """Look once. The first look says which topic is waited for: one that is made under its name
        later is another one. A store that does not respond is looked at again by the next poke.
        """
        from lakehead.connectors.airflow.errors import airflow_errors
        from lakehead.connectors.airflow.hooks import ConnectionUnavailable, LakeheadHook
        from lakehead.storage.clock import SystemClock
        from lakehead.storage.errors import StoreRefused, StoreUnavailable

        with airflow_errors():
            condition = self._waits_for or self._kept(context) or self.condition()
            try:
                state = LakeheadHook(self.lakehead_conn_id).state()
            except StoreRefused:
                raise
            except (StoreUnavailable, ConnectionUnavailable) as error:
                self.log.warning("%s: the next look may succeed", error)
                return PokeReturnValue(False)
            condition = of_its_topic(condition, state)
            verdict = condition.verdict(state, SystemClock().now_ms())
        if self._waits_for is None:
            self._waits_for = condition
            self._keep(context, condition)
        self.log.info(verdict.text)
        return PokeReturnValue(verdict.is_met, verdict.found or None)

    def execute(self, context: "Context") -> Any:
        """Wait, or have the triggerer wait."""
        if not self.deferrable:
            return super().execute(context)
        first = self.poke(context)
        if not first.is_done:
            from lakehead.connectors.airflow.triggers import ConditionTrigger

            waits_for = encoded(self._waits_for or self.condition())
            self.defer(
                trigger=ConditionTrigger(self.lakehead_conn_id, waits_for, self.poke_interval),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )
        return first.xcom_value

    def _kept(self, context: "Context") -> Condition | None:
        """The condition of an earlier look of this try; None if this is the first, or no process of
        this sensor comes after it.
        """
        if not self._is_rescheduled or not STATE_STORES.is_there:
            return None
        kept = context["task_state_store"].get(_key(context))
        return decoded(kept) if isinstance(kept, dict) else None

    def _keep(self, context: "Context", condition: Condition) -> None:
        if not self._is_rescheduled:
            return
        if STATE_STORES.is_there:
            context["task_state_store"].set(_key(context), encoded(condition))
        else:
            self.log.warning(STATE_STORES.without)

    @property
    def _is_rescheduled(self) -> bool:
        return self.mode == "reschedule" and not self.deferrable

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> Any:
        """Go on when the triggerer has waited."""
        del context
        if error := event.get("error"):
            raise (AirflowFailException if event["is_final"] else AirflowException)(error)
        return event["found"]


class TopicOffsetSensor(ConditionSensor):
    """Waits until a topic has reached offsets: its records below them lie in objects, or with
    ``in_table`` in its table.

    :param offsets: one offset for all partitions, or one for each by its number; a partition that
        is not named is not waited for.
    """

    template_fields: Sequence[str] = (*ConditionSensor.template_fields, "offsets")

    def __init__(
        self, *, offsets: int | str | Mapping[Any, int | str], in_table: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.offsets = offsets
        self.in_table = in_table

    def condition(self) -> Condition:
        """Return what is waited for."""
        given = self.offsets
        if isinstance(given, Mapping):
            return TopicOffset(
                topic=self.topic,
                offsets={str(one): _whole("offsets", offset) for one, offset in given.items()},
                in_table=self.in_table,
            )
        offset = _whole("offsets", given)
        return TopicOffset(topic=self.topic, offsets=offset, in_table=self.in_table)


class TopicTimeSensor(ConditionSensor):
    """Waits until each partition of a topic (``partitions="any"``: one of them) has a record of
    this time or later, by the records' timestamps.

    :param timestamp: a datetime, its ISO form (``{{ data_interval_end }}``), or milliseconds.
    """

    template_fields: Sequence[str] = (*ConditionSensor.template_fields, "timestamp")

    def __init__(
        self,
        *,
        timestamp: datetime | str | int,
        partitions: Literal["all", "any"] = "all",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if partitions not in {"all", "any"}:
            raise ValueError(f"partitions is {partitions!r}: use all or any")
        self.timestamp = timestamp
        self.partitions: Literal["all", "any"] = partitions

    def condition(self) -> Condition:
        """Return what is waited for."""
        moment = _milliseconds(self.timestamp)
        return TopicTime(topic=self.topic, timestamp_ms=moment, partitions=self.partitions)


class TableFreshSensor(ConditionSensor):
    """Waits until a topic's table lacks nothing that has lain in objects for longer than this.

    :param within: how old what it lacks may be: seconds, or a timedelta.
    """

    def __init__(self, *, within: timedelta | float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.within = within

    def condition(self) -> Condition:
        """Return what is waited for."""
        within = self.within
        seconds = within.total_seconds() if isinstance(within, timedelta) else float(within)
        return TableFresh(topic=self.topic, seconds=seconds)


class LagSensor(ConditionSensor):
    """Waits until a topic's table lacks fewer records than this.

    :param under: a number of records; those that lie in objects count.
    """

    template_fields: Sequence[str] = (*ConditionSensor.template_fields, "under")

    def __init__(self, *, under: int | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.under = under

    def condition(self) -> Condition:
        """Return what is waited for."""
        return LagUnder(topic=self.topic, records=_whole("under", self.under))


def _key(context: "Context") -> str:
    """The key of a rescheduled sensor's condition; another try begins again."""
    return f"lakehead_condition_{context['ti'].try_number}"


def _whole(name: str, value: int | str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise AirflowFailException(f"{name} has {value!r}: give a whole number") from None


def _milliseconds(value: datetime | str | int) -> int:
    if isinstance(value, str) and not value.strip().lstrip("-").isdecimal():
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise AirflowFailException(
                f"timestamp is {value!r}: give a time such as 2026-11-22T00:00:00+00:00, or "
                "milliseconds"
            ) from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise AirflowFailException(f"timestamp {value} has no time zone: add one, as +00:00")
        return round(value.timestamp() * 1000)
    return int(value)
