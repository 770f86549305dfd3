"""The jobs of tables as operators of their own, with parameters in place of options."""

from collections.abc import Sequence
from typing import Any

from lakehead.connectors.airflow.operators.job import LakeheadJobOperator


class LakeheadMaterializeOperator(LakeheadJobOperator):
    """Adds the records that lie in objects now to declared tables.

    :param topic: the topic (or ``topics``) whose tables these are; without any, all. (templated)
    :param all_of_them: also those that are not due by their freshness; as if set where topics are
        named. (templated)
    :param engine: the engine of the MERGE of tables by upsert: ``delta-rs`` or ``spark``.
        (templated)
    """

    def __init__(
        self,
        *,
        topic: str | None = None,
        topics: Sequence[str] | str = (),
        all_of_them: bool | str | None = None,
        engine: str = "delta-rs",
        **kwargs: Any,
    ) -> None:
        options = {"topics": topic or topics, "all_of_them": all_of_them, "engine": engine}
        super().__init__(job="materialize", options=options, **kwargs)


class LakeheadOptimizeOperator(LakeheadJobOperator):
    """Makes big files of tables' small ones (OPTIMIZE), and puts rows in order.

    :param topic, topics, all_of_them, engine: see LakeheadMaterializeOperator. (templated)
    """

    def __init__(
        self,
        *,
        topic: str | None = None,
        topics: Sequence[str] | str = (),
        all_of_them: bool | str | None = None,
        engine: str = "delta-rs",
        **kwargs: Any,
    ) -> None:
        options = {"topics": topic or topics, "all_of_them": all_of_them, "engine": engine}
        super().__init__(job="optimize", options=options, **kwargs)


class LakeheadVacuumOperator(LakeheadJobOperator):
    """Deletes files that no version of a table needs any more (VACUUM).

    :param topic, topics, all_of_them, engine: see LakeheadMaterializeOperator. (templated)
    :param retention_hours: hours of versions to keep, 168 at least. (templated)
    """

    def __init__(
        self,
        *,
        topic: str | None = None,
        topics: Sequence[str] | str = (),
        all_of_them: bool | str | None = None,
        engine: str = "delta-rs",
        retention_hours: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        options: dict[str, Any] = {
            "topics": topic or topics,
            "all_of_them": all_of_them,
            "engine": engine,
            "retention_hours": retention_hours,
        }
        super().__init__(job="vacuum", options=options, **kwargs)


class LakeheadReplayOperator(LakeheadJobOperator):
    """Brings dead letters that can be rows now into the table of a topic.

    :param topic: the topic. (templated)
    """

    def __init__(self, *, topic: str, engine: str = "delta-rs", **kwargs: Any) -> None:
        super().__init__(job="replay", options={"topic": topic, "engine": engine}, **kwargs)


class LakeheadBackfillOperator(LakeheadJobOperator):
    """Has the table of a topic begin earlier, and adds what lies before its beginning.

    :param topic: the topic. (templated)
    :param begin: ``earliest``, a time (ISO 8601; UTC if it names no zone), or offsets of partitions
        as ``0:1200,1:3400``. (templated)
    """

    def __init__(
        self, *, topic: str, begin: str = "earliest", engine: str = "delta-rs", **kwargs: Any
    ) -> None:
        options = {"topic": topic, "begin": begin, "engine": engine}
        super().__init__(job="backfill", options=options, **kwargs)


class LakeheadRebuildTableOperator(LakeheadJobOperator):
    """Rebuilds the table of a topic by its present declaration, and swaps it in.

    :param topic: the topic. (templated)
    :param without_history: even if rows of records that retention has removed are lost. (templated)
    """

    def __init__(
        self,
        *,
        topic: str,
        without_history: bool | str = False,
        engine: str = "delta-rs",
        **kwargs: Any,
    ) -> None:
        options = {"topic": topic, "without_history": without_history, "engine": engine}
        super().__init__(job="rebuild_table", options=options, **kwargs)
