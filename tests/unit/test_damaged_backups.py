"""Backups whose manifest or metadata are damaged, or whose metadata are missing."""

from pathlib import Path

import pytest

from lakehead.storage.backup.pruning import Kept
from tests.support.backups import back_up, bring_back
from tests.support.command_line import CommandLine
from tests.unit.test_backup import replace_objects, rows, write


@pytest.mark.parametrize("part", ["manifest", "state"])
def test_a_damaged_backup_is_passed_over_and_named(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command_line = CommandLine(monkeypatch, capsys)
    source, target = tmp_path / "store", tmp_path / "backup"
    write(tmp_path)
    before = rows(source)
    back_up(source, target)
    write(tmp_path, seed=1)
    back_up(source, target)
    damaged = max((target / "backup" / part).iterdir())
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-5] + b"xxxxx")
    done = command_line("restore", str(target), str(tmp_path / "new"))
    assert done.status == 0, done.err
    assert f"backup 1 is damaged and was passed over: object backup/{part}/" in done.err
    assert rows(tmp_path / "new") == before
    wanted = command_line.fails("restore", str(target), str(tmp_path / "newer"), "--backup", "1")
    assert f"backup/{part}/" in wanted
    damaged = min((target / "backup" / "manifest").iterdir())
    damaged.chmod(0o600)
    damaged.write_bytes(b"x")
    assert "no backup" in command_line.fails("restore", str(target), str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("part", "is_lost"), [("manifest", False), ("state", False), ("state", True)]
)
def test_beside_a_damaged_backup_others_are_made_and_nothing_is_deleted(
    tmp_path: Path, part: str, is_lost: bool
) -> None:
    """The objects that it names are not known: an operator may still need them."""
    source, target = tmp_path / "store", tmp_path / "backup"
    for seed in range(3):
        write(tmp_path, seed=seed, uploads=1)
        back_up(source, target, kept=Kept(newest=9))
    damaged = sorted((target / "backup" / part).iterdir())[1]
    whole = damaged.read_bytes()
    damaged.chmod(0o600)
    damaged.write_bytes(whole[:-5] + b"xxxxx")
    if is_lost:
        damaged.unlink()
    write(tmp_path, seed=3, uploads=2)
    replace_objects(source)
    before = {one for one in target.rglob("*") if one.is_file()}
    for _ in range(2):
        back_up(source, target, kept=Kept(newest=1, hours=0))
    assert all(one.exists() for one in before if one == damaged or "/data/" in str(one))
    bring_back(target, tmp_path / "new")
    assert rows(tmp_path / "new") == rows(source)
    damaged.write_bytes(whole)
    back_up(source, target, kept=Kept(newest=1, hours=0))
    assert len(list((target / "backup" / "manifest").iterdir())) == 1
    assert not all(one.exists() for one in before)
    bring_back(target, tmp_path / "again")
    assert rows(tmp_path / "again") == rows(source)
