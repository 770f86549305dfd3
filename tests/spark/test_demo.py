"""`lakehead demo`, as a user runs it: a process of its own, in an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.s3_server import S3Server
from lakehead.broker.cli.demonstration.dataset import DATASETS, messages, read_table
from lakehead.broker.cli.demonstration.results import AirlineDelay, check_equal, reference
from lakehead.storage.errors import LakeheadError

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"airlines": 16, "airports": 1_458, "planes": 3_322, "weather": 26_115, "flights": 336_776}


def run_demo(folder: Path, *options: str) -> str:
    """Run the demo in `folder` and return what it printed."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = subprocess.run(
        [sys.executable, "-m", "lakehead", "demo", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for words in ("336,776", "United Air Lines Inc.", "The same result three times", "Try next"):
        assert words in run.stdout
    assert "Traceback" not in run.stdout + run.stderr
    return run.stdout


@pytest.mark.timeout(400)
def test_the_demo_ends_with_three_equal_answers_and_leaves_its_data(tmp_path: Path) -> None:
    run_demo(tmp_path)
    data = tmp_path / "lakehead-demo"
    assert (data / "store" / "meta").is_dir()
    assert (data / "tables" / "flights" / "_delta_log").is_dir()


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_the_demo_works_with_everything_on_s3_even_the_write_ahead_log(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    options = f"endpoint={s3_server.endpoint}&region={s3_server.region}"
    store = f"{s3_server.uri}/demo?{options}"
    words = run_demo(tmp_path, "--store", store, "--wal", "object:")
    bucket = s3_server.folder / s3_server.bucket / "demo"
    assert (bucket / "meta").is_dir()
    assert (bucket / "tables" / "flights" / "_delta_log").is_dir()
    assert not (tmp_path / "lakehead-demo" / "wal").exists()
    assert f"topics list --path '{store}'" in words


def test_the_data_are_whole_and_keys_are_those_of_the_rows() -> None:
    for dataset in DATASETS:
        table = read_table(dataset)
        assert len(table) == SIZES[dataset.topic]
        key, value = next(messages(dataset, table))
        assert f'"{dataset.key}":"{key.decode()}"' in value.decode()


def test_a_wrong_answer_is_named() -> None:
    tables = {dataset.topic: dataset for dataset in DATASETS}
    wanted = reference(read_table(tables["flights"]), read_table(tables["airlines"]))
    assert wanted[0].flights == 58_665
    check_equal("a copy", list(wanted), wanted)
    short = wanted[:-1]
    with pytest.raises(LakeheadError, match="15 airlines, the source 16"):
        check_equal("a table", short, wanted)
    other = [AirlineDelay(name=row.name, flights=row.flights + 1, mean_delay=0) for row in wanted]
    with pytest.raises(LakeheadError, match="58666"):
        check_equal("a table", other, wanted)
