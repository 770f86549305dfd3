"""A connector as a task, with the brokers of the connection."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.connect_runs import values

pytestmark = [
    pytest.mark.slow,  # make connect-test
    pytest.mark.xdist_group("airflow"),
    pytest.mark.filterwarnings("default"),  # Airflow's own
]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path)
    broker.start()
    path = str(tmp_path / "data")
    connection = {"conn_type": "lakehead", "host": "127.0.0.1", "port": broker.port}
    monkeypatch.setenv(
        "AIRFLOW_CONN_LAKEHEAD_DEFAULT", json.dumps({**connection, "extra": {"path": path}})
    )
    yield broker
    broker.kill()


def test_files_by_a_task(broker: BrokerProcess, tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from lakehead.connectors.airflow.operators.connect import LakeheadConnectOperator

    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps({"id": n}) + "\n" for n in range(100)))
    config: dict[str, Any] = {
        "name": "files",
        "source": {"type": "files", "path": str(folder)},
        "sink": {"type": "topic", "topic": "files", "partitions": 2},
    }

    def task(**options: Any) -> Any:
        return LakeheadConnectOperator(task_id="files", **{"config": config, **options})

    assert task(dry_run=True).execute({})["partitions"] == 1
    assert task().execute({})["records"] == 100
    assert task().execute({})["records"] == 0
    (folder / "b.jsonl").write_text("{broken\n")
    with pytest.raises(AirflowFailException, match=r"b\.jsonl, line 1: not JSON"):
        task().execute({})
    (folder / "b.jsonl").write_text('{"id": 100}\n')
    killed = task()
    killed.on_kill()
    with pytest.raises(AirflowException, match="a retry resumes"):
        killed.execute({})
    assert task().execute({})["records"] == 1
    found = sorted(json.loads(value)["id"] for value in values(broker.bootstrap, "files"))
    assert found == list(range(101))
    with pytest.raises(AirflowFailException, match=r"config: source: object contains unknown"):
        task(config={**config, "source": {**config["source"], "keys": "id"}}).execute({})
    with pytest.raises(ValueError, match="config, or config_file"):
        task(config_file="x.toml")
