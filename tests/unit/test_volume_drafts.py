"""The file of a block WAL is made under another name first: what lies there may be anybody's."""

from pathlib import Path

import pytest

from lakehead.storage.errors import SettingsError
from lakehead.storage.wal.block_format import SECTOR, VolumeHeader
from lakehead.storage.wal.volume_file import ensure_file

SIZE = 1 << 20
HEADER = VolumeHeader(
    generation=1, volume_id=b"v" * 16, capacity=SIZE, host_id="h", cluster_id="", slices=()
).encode()
IMAGE = [(0, HEADER)]


@pytest.mark.parametrize("body", [b"notes", b"\0" * 100 + b"x", b"\0" * (2 * SECTOR - 1) + b"x"])
def test_a_file_that_is_not_a_draft_is_left_alone(tmp_path: Path, body: bytes) -> None:
    other = tmp_path / "wal.new"
    other.write_bytes(body)
    with pytest.raises(SettingsError, match="in the way"):
        ensure_file(tmp_path / "wal", SIZE, IMAGE)
    assert other.read_bytes() == body
    assert not (tmp_path / "wal").exists()


@pytest.mark.parametrize("body", [b"", b"\0" * 100, b"\0" * SIZE, HEADER, HEADER + b"\0" * SIZE])
def test_what_a_crash_has_left_is_made_again(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "wal.new").write_bytes(body)
    assert ensure_file(tmp_path / "wal", SIZE, IMAGE)
    assert (tmp_path / "wal").stat().st_size == SIZE
    assert (tmp_path / "wal").read_bytes().startswith(HEADER)
    assert not (tmp_path / "wal.new").exists()
