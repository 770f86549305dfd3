"""The policy of docs/security.md: a reader of one table reads that table and no topic."""

import json
import re
from pathlib import Path

import pytest

from tests.terraform.policy_evaluation import Decision, Request, decide

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BUCKET = "arn:aws:s3:::my-lake"


def allowed(action: str, key: str = "", **context: str) -> bool:
    found = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    resource = f"{BUCKET}/{key}" if key else BUCKET
    names = {name.replace("_", ":"): value for name, value in context.items()}
    request = Request(action=action, resource=resource, context=names)
    return decide(request, [json.loads(found[1])]) is Decision.ALLOWED


def test_a_reader_of_a_table_reads_its_files_and_lists_them() -> None:
    for key in ("_delta_log/00000000000000000000.json", "part-0.parquet", "day=1/part-0.parquet"):
        assert allowed("s3:GetObject", f"lakehead/tables/orders/{key}")
    for prefix in ("lakehead/tables/orders/", "lakehead/tables/orders/_delta_log/"):
        assert allowed("s3:ListBucket", s3_prefix=prefix)


@pytest.mark.parametrize(
    "key",
    [
        "lakehead/data/3f/1-1-1",
        "lakehead/data/3f/job-1-0123456789abcdef",
        "lakehead/meta/log/00000000000000000000.json",
        "lakehead/meta/checkpoint/1.parquet",
        "lakehead/wal/0/1/1",
        "lakehead/tables/payments/part-0.parquet",
        "lakehead/tables/orders2/part-0.parquet",
        "lakehead/tables/orders__dlq/part-0.parquet",
        "lakehead/tables/orders__rebuild/part-0.parquet",
        "lakehead-settings/brokers.toml",
    ],
)
def test_a_reader_of_a_table_reads_no_topic_and_no_other_table(key: str) -> None:
    assert not allowed("s3:GetObject", key)
    assert not allowed("s3:ListBucket", s3_prefix=key.rpartition("/")[0] + "/")


def test_a_reader_of_a_table_writes_nothing_and_lists_no_more() -> None:
    key = "lakehead/tables/orders/part-0.parquet"
    for action in ("s3:PutObject", "s3:DeleteObject", "s3:GetObjectVersion"):
        assert not allowed(action, key)
    for context in (
        {},
        {"s3_prefix": ""},
        {"s3_prefix": "lakehead/"},
        {"s3_prefix": "lakehead/tables/"},
    ):
        assert not allowed("s3:ListBucket", **context)
