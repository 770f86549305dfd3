"""The options of the Spark source: name, default, where it counts and what it means. The options
table of the documentation is made from it, and what is not in it is refused.
"""

from typing import Literal, NamedTuple

Reads = Literal["both", "batch", "stream"]


class Option(NamedTuple):
    """An option. `has_effect` is False where no broker is asked: accepted, so that a query of
    Spark's Kafka source runs as it is.
    """

    name: str
    default: str
    reads: Reads
    meaning: str
    has_effect: bool = True


ASSIGN, SUBSCRIBE, SUBSCRIBE_PATTERN = STRATEGIES = ("assign", "subscribe", "subscribePattern")

OPTIONS = (
    Option(
        "path",
        "required",
        "both",
        "the cluster's place: `/data/lakehead/store`, `s3://bucket/prefix`",
    ),
    Option(ASSIGN, "", "both", 'partitions: `{"topicA":[0,1],"topicB":[2]}`'),
    Option(SUBSCRIBE, "", "both", "topics, separated by commas"),
    Option(
        SUBSCRIBE_PATTERN,
        "",
        "both",
        "a regular expression (Python's) that whole topic names match; one of these three is "
        "needed. Kafka's internal topics are matched by none",
    ),
    Option(
        "columns",
        "all",
        "both",
        "only these are decoded: `value,offset`; a narrower `.schema(…)` does the same",
    ),
    Option("includeHeaders", "false", "both", "add the column `headers` (decoded: `_headers`)"),
    Option(
        "decode",
        "`none`",
        "both",
        "`declared`: values of the topic become columns as its configs `lakehead.table.*` declare "
        "(a topic that declares nothing is read as with `none`); `json`: as JSON, whatever is "
        "declared. For one topic",
    ),
    Option(
        "undecodable",
        "`fail`",
        "both",
        "a value that cannot be decoded: `fail` names topic, partition and offset; `null` gives "
        "NULL in its columns and says why in a column `_error`",
    ),
    Option(
        "mode",
        "`FAILFAST`",
        "both",
        "a batch that no reader can read, or a record whose time is beyond a TIMESTAMP: "
        "`FAILFAST` names topic, partition and offsets; `DROPMALFORMED` leaves it out; "
        "`PERMISSIVE` gives NULL for the time, and for a batch one row with NULL in all but "
        "topic, partition and first offset",
    ),
    Option(
        "catalog",
        "",
        "batch",
        "a table about the cluster instead of records: `topics`, `partitions`, `objects`, "
        "`groups`, `nodes`, `tables`, or `offsets_for` a `timestamp`",
    ),
    Option(
        "timestamp",
        "",
        "batch",
        "milliseconds, for `catalog=offsets_for`: from which offset on a record may be that new",
    ),
    Option(
        "startingOffsets",
        "`earliest`; stream: `latest`",
        "both",
        '`earliest`, `latest` (streams) or `{"t":{"0":23,"1":-2}}`: -2 earliest, -1 latest',
    ),
    Option(
        "startingTimestamp",
        "",
        "both",
        "milliseconds: from the first record at or after it; wins over the next, and that over "
        "`startingOffsets`",
    ),
    Option("startingOffsetsByTimestamp", "", "both", '`{"t":{"0":1000}}`'),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        "both",
        "a start without a record at or after it: `error` or `latest`",
    ),
    Option("endingOffsets", "`latest`", "batch", "`latest` or offsets, exclusive; -1 latest"),
    Option("endingTimestamp", "", "batch", "to before the first record at or after it"),
    Option("endingOffsetsByTimestamp", "", "batch", '`{"t":{"0":1000}}`'),
    Option(
        "kafka.isolation.level",
        "`read_committed`",
        "both",
        "`read_uncommitted` shows aborted and undecided transactions too (the default of Spark's "
        "Kafka source)",
    ),
    Option(
        "failOnDataLoss",
        "true",
        "both",
        "fail when offsets are gone, or a topic was deleted or made again; else read what is there",
    ),
    Option(
        "tail",
        "`objects`",
        "both",
        "`wal`: read what is acknowledged and not uploaded yet from WAL objects (needs nodes "
        "with `--wal object:`)",
    ),
    Option(
        "minPartitions",
        "",
        "both",
        "at least about this number of tasks, as far as blocks of about 1 MB go",
    ),
    Option("maxRecordsPerPartition", "", "both", "at most this number of offsets in a task"),
    Option(
        "maxOffsetsPerTrigger",
        "",
        "stream",
        "at most about this number of offsets in a batch, shared in proportion to what waits",
    ),
    Option("minOffsetsPerTrigger", "", "stream", "wait until this number of offsets is there"),
    Option("maxTriggerDelay", "15m", "stream", "but not longer than this"),
    Option("groupIdPrefix", "", "both", "there is no group", has_effect=False),
    Option("kafkaConsumer.pollTimeoutMs", "", "both", "nothing is polled", has_effect=False),
    Option("fetchOffset.numRetries", "", "both", "requests are repeated anyway", has_effect=False),
    Option("fetchOffset.retryIntervalMs", "", "both", "as above", has_effect=False),
)

BY_NAME = {option.name.lower(): option for option in OPTIONS}


def options_table() -> str:
    """Return the options as a table in Markdown."""
    lines = ["| option | default | for | meaning |", "| --- | --- | --- | --- |"]
    for name, default, reads, meaning, has_effect in OPTIONS:
        shown = (
            default if not default or "`" in default or default == "required" else f"`{default}`"
        )
        said = meaning if has_effect else f"no effect: {meaning}"
        lines.append(f"| `{name}` | {shown} | {reads} | {said.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"
