"""The options of the job `forget`, and the table that its topic may have."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakehead.lake.jobs.table_jobs import TopicOptions
from lakehead.storage.errors import SettingsError
from lakehead.storage.jobs.options import names, option

if TYPE_CHECKING:  # a DAG is parsed without them
    from lakehead.storage.metadata.log import MetadataLog
    from lakehead.storage.metadata.state import TopicState
    from lakehead.storage.object_store import ObjectStore

WRITER = "forget"
"""The name under which the job writes to the metadata log."""
_KEYS_WORDS = (
    "A key: text, hex:6b31, or @FILE with one a line (@-: standard input). May be repeated. Of a "
    "key in a file no shell history and no list of processes has a trace."
)


def _lines(value: Any) -> tuple[str, ...]:
    """Return keys that were given as a list, as JSON, or as a text with one a line."""
    if not isinstance(value, str):
        return tuple(str(one) for one in value)
    if value.startswith("["):
        import json

        return tuple(str(one) for one in json.loads(value))
    return tuple(_split(value))


def _split(text: str) -> list[str]:
    """Return the lines of a text that have something. A key may have the other characters that
    `str.splitlines` takes for the end of a line.
    """
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [line for line in lines if line]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetOptions(TopicOptions):
    """The topic, and the keys; or a certificate to check."""

    topic: str = option(
        "",
        "The topic.",
        title="Topic",
        metavar="TOPIC",
        is_argument=True,
        form={"required": True, "minLength": 1},
    )
    keys: tuple[str, ...] = option(
        (),
        _KEYS_WORDS,
        title="Keys",
        flag="--key",
        metavar="KEY",
        form={"description": "One a line: text, hex:6b31, or @FILE on the worker's machine."},
        parse=_lines,
    )
    check: int | None = option(
        None,
        "Change nothing: look for records of the keys of this certificate in every object and "
        "file. Status 1 if there are any.",
        flag="--check",
        metavar="N",
        least=1,
        in_form=False,
    )
    old_versions: bool = option(
        False,
        "With --check: first delete the old versions with records of the keys, which a bucket with "
        "versioning keeps of deleted objects and files, and note them beside the certificate.",
        flag="--old-versions",
        in_form=False,
    )
    until: str = option(
        "",
        "Wait until objects have these offsets of partitions, as 0:1200,1:3400, and forget what "
        "is below. Without: what is in objects now.",
        title="Until",
        flag="--until",
        metavar="OFFSETS",
    )
    upload_wait_s: int = option(
        120,
        "Seconds to wait for the offsets of --until.",
        flag="--upload-wait",
        metavar="SECONDS",
        least=0,
        in_form=False,
    )
    approved_keys: str = option(
        "",
        "The digest of the keys that were approved, as a dry run shows it. Other keys are refused, "
        "as those of a file that was changed after it.",
        flag="--approved-keys",
        metavar="DIGEST",
        in_form=False,
    )
    requested_by: str = option(
        "",
        "Name in the certificate. Without: user and machine.",
        title="Requested by",
        flag="--requested-by",
        metavar="NAME",
    )

    def ends(self) -> dict[int, int]:
        """Return the offsets to wait for, by partition. Raises SettingsError."""
        try:
            pairs = [one.split(":") for one in names(self.until)]
            return {int(partition): int(offset) for partition, offset in pairs}
        except ValueError:
            raise SettingsError(
                f"until is {self.until!r}: give offsets of partitions as 0:1200,1:3400"
            ) from None

    def key_bytes(self) -> tuple[bytes, ...]:
        """Return the keys. Raises SettingsError for a file that cannot be read, and for no key."""
        found = dict.fromkeys(key for given in self.keys for key in _keys_of(given))
        if not found:
            raise SettingsError("option keys is missing: name a key with --key")
        return tuple(sorted(found))


def _keys_of(given: str) -> list[bytes]:
    if given.startswith("@"):
        try:
            name = given[1:]
            body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as error:
            raise SettingsError(f"cannot read {given[1:]}: {error.strerror}") from None
        return [_key_of(line) for line in _split(body.decode("utf-8", "surrogateescape"))]
    return [_key_of(given)]


def _key_of(given: str) -> bytes:
    if not given.startswith("hex:"):
        return given.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(given.removeprefix("hex:"))
    except ValueError:
        raise SettingsError(f"{given!r} is not a key in hexadecimal digits: hex:6b31") from None


def may_have_table(topic: "TopicState") -> bool:
    """Return true if a topic declares a table, or declared one that is switched off."""
    from lakehead.lake.declaration.table_declaration import PREFIX

    return any(name.startswith(PREFIX) for name in topic.configs)


def has_table(path: str, topic: str) -> bool:
    """Return true if a topic may have a table, by its configs."""
    from lakehead.storage.jobs.cluster import in_cluster

    async def look(_: "ObjectStore", log: "MetadataLog") -> bool:
        known = log.state.topics.get(topic)
        return known is not None and may_have_table(known)

    return in_cluster(path, WRITER, look)
