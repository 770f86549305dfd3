"""Deletion vectors of Delta tables: what is stored is what is read, and nothing else passes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.tables.deletion_vectors import (
    INLINE_BYTES,
    DeletionVector,
    read_vector,
    write_vectors,
)
from lakehead.storage.errors import CorruptObject

SCATTERED = np.arange(0, 1_000_000, 997)


@given(
    kinds=st.lists(
        st.sets(st.one_of(st.integers(0, 200), st.integers(0, 1 << 34)), min_size=1, max_size=80),
        min_size=1,
        max_size=4,
    )
)
def test_rows_of_every_vector_are_those_that_were_given(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[set[int]]
) -> None:
    root = str(tmp_path_factory.mktemp("table"))
    given_rows = [np.array(sorted(rows), np.int64) for rows in kinds]
    vectors, _ = write_vectors(root, given_rows)
    for rows, vector in zip(given_rows, vectors, strict=True):
        told = DeletionVector.of(vector.descriptor())
        assert told == vector
        assert read_vector(root, told).tolist() == rows.tolist()
        assert (told.storage == "i") == (told.size_bytes <= INLINE_BYTES)


def test_vectors_of_a_commit_share_a_file_and_small_ones_need_none(tmp_path: Path) -> None:
    vectors, size = write_vectors(str(tmp_path), [SCATTERED, np.array([3]), SCATTERED + 1])
    assert [vector.storage for vector in vectors] == ["u", "i", "u"]
    assert vectors[0].path == vectors[2].path
    (file,) = tmp_path.glob("*.bin")
    assert file.name == vectors[0].path
    assert file.stat().st_size == size
    assert file.read_bytes()[0] == 1, "the version of the format"
    _, nothing = write_vectors(str(tmp_path), [np.array([3])])
    assert nothing == 0
    assert list(tmp_path.glob("*.bin")) == [file]


def test_a_path_with_a_prefix_is_that_of_the_specification() -> None:
    # The example of Delta's protocol.
    vector = DeletionVector(
        storage="u", place="ab^-aqEH.-t@S}K{vb[*k^", offset=4, size_bytes=40, rows=6
    )
    assert vector.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_bytes_that_are_not_the_vector_are_refused(tmp_path: Path) -> None:
    root = str(tmp_path)
    (vector,), _ = write_vectors(root, [SCATTERED])
    (file,) = tmp_path.glob("*.bin")
    whole = file.read_bytes()
    for at in (1, 5, 40, len(whole) - 1):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptObject):
            read_vector(root, vector)
    file.write_bytes(whole)
    with pytest.raises(CorruptObject, match="1004 rows in place of 1003"):
        read_vector(root, replace(vector, rows=1003))
    with pytest.raises(CorruptObject, match="absolute path"):
        read_vector(root, replace(vector, storage="p", place="s3://other/v.bin"))
