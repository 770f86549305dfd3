"""Data keys: one for an hour of writing, a bounded number of requests to their provider, and the
file of wrapping keys.
"""

import asyncio
import random
import stat
from pathlib import Path

import pytest

from lakehead.storage.encryption.data_keys import LIFE_MAX_S, LIFE_S, data_keys
from lakehead.storage.encryption.key_file import KeyFile, add_key, read_keys
from lakehead.storage.encryption.key_provider import FILE, KMS, WrappedKey
from lakehead.storage.encryption.settings import (
    EncryptionSettings,
    joined_address,
    of_environment,
    plain_address,
    split_address,
)
from lakehead.storage.errors import (
    KeyUnavailable,
    SettingsError,
    StoreUnavailable,
    UnsupportedFormat,
)
from tests.simulation.loop import LoopClock, simulate
from tests.support.encryption_keys import MemoryKeys


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


async def test_a_data_key_is_made_once_an_hour_however_many_writers_there_are() -> None:
    provider, clock = MemoryKeys(random.Random(1)), Clock()
    keys = provider.data_keys(clock=clock)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keys.current()) for _ in range(50)]
    assert len({task.result() for task in tasks}) == provider.made == 1
    clock.now = LIFE_S - 1
    first = await keys.current()
    assert provider.made == 1
    clock.now = LIFE_S
    assert await keys.current() != first
    assert provider.made == 2
    assert await keys.unwrap(first.wrapped) == first.plain
    assert provider.unwrapped == 0, "its own keys are at hand"


async def test_a_provider_that_is_away_delays_renewal_for_hours_and_no_longer() -> None:
    provider, clock = MemoryKeys(random.Random(1)), Clock()
    keys = provider.data_keys(clock=clock)
    first = await keys.current()
    provider.is_away = True
    for now in (LIFE_S, LIFE_MAX_S - 1):
        clock.now = now
        assert await keys.current() == first
    clock.now = LIFE_MAX_S + 60
    with pytest.raises(StoreUnavailable):
        await keys.current()
    provider.is_away = False
    assert await keys.current() != first


def test_a_provider_that_hangs_delays_a_write_by_seconds_only_while_there_is_a_key() -> None:
    async def world() -> None:
        loop = asyncio.get_running_loop()
        provider = MemoryKeys(random.Random(1))
        keys = provider.data_keys(clock=LoopClock(loop))
        first = await keys.current()
        provider.is_hanging = True
        await asyncio.sleep(LIFE_S)
        began = loop.time()
        assert await keys.current() == first
        assert 0 < loop.time() - began < 5, "a put of an object WAL is given up after 5 s"
        began = loop.time()
        assert await keys.current() == first
        assert loop.time() == began, "it is not tried again at once"
        provider.is_hanging = False
        await asyncio.sleep(120)
        assert await keys.current() != first

    simulate(world, seed=1)


async def test_many_readers_of_one_key_unwrap_it_once() -> None:
    provider = MemoryKeys(random.Random(1))
    key = await provider.data_keys().current()
    reader = provider.data_keys(writes=False)
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(reader.unwrap(key.wrapped))
    assert provider.unwrapped == 1


async def test_a_key_of_another_provider_says_which_setting_opens_it() -> None:
    reader = data_keys(
        EncryptionSettings(key_file="/keys"), "", clock=Clock(), rng=random.Random(1)
    )
    with pytest.raises(KeyUnavailable, match=r"'arn:k' in AWS KMS: set encryption\.key\.provider"):
        await reader.unwrap(WrappedKey(KMS, "arn:k", b""))
    reader = data_keys(EncryptionSettings(provider="kms"), "", clock=Clock(), rng=random.Random(1))
    with pytest.raises(KeyUnavailable, match=r"'k' in file: set encryption\.key\.file"):
        await reader.unwrap(WrappedKey(FILE, "k", b""))
    with pytest.raises(UnsupportedFormat, match=r"provider 9.* upgrade"):
        await reader.unwrap(WrappedKey(9, "k", b""))


async def test_a_rotated_file_wraps_by_its_first_key_and_opens_by_each(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    rng = random.Random(1)
    add_key(path, "old", rng=rng)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = KeyFile(str(path), rng=rng)
    before = await keys.new_key()
    path.chmod(0o640)
    add_key(path, "new", rng=rng)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "a group that reads it still does"
    after = await keys.new_key()
    assert (before.wrapped.key_id, after.wrapped.key_id) == ("old", "new")
    assert list(read_keys(path)) == ["new", "old"]
    reader = KeyFile(str(path), rng=rng)
    assert [await reader.unwrap(key.wrapped) for key in (before, after)] == [
        before.plain,
        after.plain,
    ]
    path.write_text(path.read_text().splitlines()[0])
    with pytest.raises(KeyUnavailable, match=f"the key 'old' is not in {path}"):
        await reader.unwrap(before.wrapped)


async def test_a_key_of_the_same_name_does_not_open_another_ones(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        add_key(tmp_path / folder / "keys", "k", rng=random.Random(folder))
    key = await KeyFile(str(tmp_path / "a" / "keys"), rng=random.Random(1)).new_key()
    with pytest.raises(KeyUnavailable, match=r"'k' in .*b/keys is another one of the same name"):
        await KeyFile(str(tmp_path / "b" / "keys"), rng=random.Random(1)).unwrap(key.wrapped)


GOOD = "k " + "A" * 43 + "="


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no key: lakehead encryption-key"),
        ("# only words\n", "has no key"),
        (f"{GOOD}\n{GOOD}\n", "line 2: there are two keys 'k'"),
        ("k\n", "line 1: not an id and 32 bytes in Base64"),
        ("k c2hvcnQ=\n", "line 1: not an id and 32 bytes"),
        (f"a/b{GOOD}\n", "line 1: not an id"),
        (f"\n# x\n{GOOD}!\n", "line 3: not an id"),
    ],
)
async def test_a_wrong_file_is_one_line_without_its_keys(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(KeyUnavailable, match=words) as refused:
        await KeyFile(str(path), rng=random.Random(1)).new_key()
    assert "\n" not in str(refused.value)
    assert "AAAA" not in str(refused.value)


async def test_a_missing_file_is_an_error_that_goes_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = KeyFile(str(path), rng=random.Random(1))
    with pytest.raises(KeyUnavailable, match=f"cannot read the key file {path}: No such file"):
        await keys.new_key()
    add_key(path, "k", rng=random.Random(1))
    assert (await keys.new_key()).wrapped.key_id == "k"


async def test_keys_made_unwrapped_failed_and_cached_are_counted() -> None:
    provider, clock = MemoryKeys(random.Random(1)), Clock()
    keys = provider.data_keys(clock=clock)
    first = await keys.current()
    await keys.current()
    others = [await provider.new_key() for _ in range(3)]
    for other in others * 2:
        await keys.unwrap(other.wrapped)
    await keys.unwrap(first.wrapped)
    assert (keys.stats.made, keys.stats.unwrapped, keys.stats.hits, keys.stats.cached) == (
        *(1, 3, 4, 4),
    )
    assert (keys.stats.make_failed, keys.stats.unwrap_failed) == (0, 0)
    provider.is_away = True
    clock.now = LIFE_S
    assert await keys.current() == first
    unknown = WrappedKey(FILE, "gone", b"x")
    with pytest.raises(StoreUnavailable):
        await keys.unwrap(unknown)
    provider.is_away = False
    with pytest.raises(KeyUnavailable):
        await keys.unwrap(unknown)
    with pytest.raises(UnsupportedFormat):
        await keys.unwrap(WrappedKey(99, "later", b"x"))
    assert (keys.stats.make_failed, keys.stats.unwrap_failed) == (1, 3)
    assert (keys.stats.made, keys.stats.cached) == (1, 4)


def test_settings_travel_in_an_address_and_come_from_the_environment() -> None:
    options = {"encryption.key.provider": "file", "encryption.key.file": "/a b/ke#y", "other": "x"}
    for place in ("/data/store", "s3://bucket/prefix?region=x", "file:/data/a#b"):
        joined = joined_address(place, options)
        expected = EncryptionSettings(provider="file", key_file="/a b/ke#y")
        assert split_address(joined) == (place, expected)
        assert plain_address(joined) == place
        assert split_address(place) == (place, None)
        assert joined_address(joined, {}) == joined
    found = of_environment({"LAKEHEAD_ENCRYPTION_KEY_PROVIDER": "KMS", "LAKEHEAD_PATH": "x"})
    assert found == EncryptionSettings(provider="kms")
    assert of_environment({}) == EncryptionSettings()
    required = {"encryption.key.file": "/keys", "encryption.required": "True"}
    joined = joined_address("/data", required)
    assert split_address(joined) == (
        "/data",
        EncryptionSettings(key_file="/keys", is_required=True),
    )
    assert of_environment({"LAKEHEAD_ENCRYPTION_REQUIRED": "true"}).is_required


def test_wrong_settings_say_what_to_write() -> None:
    with pytest.raises(SettingsError, match="'vault' is not one of: none, file, kms"):
        of_environment({"LAKEHEAD_ENCRYPTION_KEY_PROVIDER": "vault"})
    with pytest.raises(SettingsError, match=r"needs encryption\.key\.file"):
        split_address("/data#encryption.key.provider=file")
    with pytest.raises(SettingsError, match=r"unknown option 'encryption\.key\.fil'"):
        split_address("/data#encryption.key.fil=x")
    with pytest.raises(SettingsError, match=r"needs encryption\.kms\.key"):
        EncryptionSettings(provider="kms").require_key()
    with pytest.raises(SettingsError, match="'yes' is neither true nor false"):
        split_address("/data#encryption.required=yes")
    with pytest.raises(SettingsError, match=r"required=true needs encryption\.key\.provider"):
        EncryptionSettings(key_file="/keys", is_required=True).require_key()
