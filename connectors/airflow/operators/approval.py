"""Approval of a plan by its digest, for an Airflow without *Required Actions*."""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator, Context

from lakehead.connectors.airflow.features import APPROVALS


class PlanDigestOperator(BaseOperator):
    """Lets the planned work begin only in a run that names the plan's digest. Without a digest it
    logs the right one, and is skipped, and so is the work: a person reads the plan, and starts a
    run with the digest.

    The digest is of the request (connection and options) and of the numbers named by `counts` in
    the result of the task `plan`. If one of them is another one than in the approved plan, the run
    fails, and changes nothing.

    :param request: connection and options of the work, as its operator gets them. (templated)
    :param counts: names of fields of the plan's result.
    :param approved: the digest that was approved; empty: none. (templated)
    """

    template_fields: Sequence[str] = ("request", "approved")
    template_fields_renderers: ClassVar[dict[str, str]] = {"request": "json"}
    ui_color = "#d7ecf5"

    def __init__(
        self,
        *,
        request: Mapping[str, Any],
        approved: str,
        counts: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.request = dict(request)
        self.approved = approved
        self.counts = tuple(counts)

    def execute(self, context: Context) -> str:
        """Return the digest. Raises AirflowSkipException without an approved one, and
        AirflowFailException for another one.
        """
        found = context["ti"].xcom_pull(task_ids="plan") or {}
        digest = plan_digest(self.request, {name: found.get(name) for name in self.counts})
        approved = self.approved.strip()
        if not approved:
            raise AirflowSkipException(
                f"{APPROVALS.without} To approve what the log of task plan shows, trigger this DAG "
                f"again with the same params and approved_plan={digest}"
            )
        if approved != digest:
            raise AirflowFailException(
                f"approved_plan is {approved}, and the plan of this run is {digest}: params or "
                "counts are other ones than in the approved plan; nothing was changed. Read the "
                "log of task plan again"
            )
        self.log.info("plan %s is approved", digest)
        return digest


def plan_digest(request: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    """Return the digest of a planned work: 16 hexadecimal digits."""
    text = json.dumps([request, counts], sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()
