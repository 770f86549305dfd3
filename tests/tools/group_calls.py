"""Calls about groups and transactions, in their order; topic `read` is there already."""

from tests.tools.call import Call, calls

_GROUP = "kafka-consumer-groups --group readers"
_RESET = f"{_GROUP} --topic read --reset-offsets"

_EMPTY = (
    Call(
        line="kafka-console-consumer --topic read --group readers --from-beginning "
        "--max-messages 26 --timeout-ms 20000",
        is_ordered=True,
    ),
    *calls(
        "kafka-consumer-groups --list",
        "kafka-consumer-groups --list --state",
        "kafka-consumer-groups --list --state Empty --type classic",
        "kafka-consumer-groups --list --type consumer",
        "kafka-consumer-groups --list --state nope",
        "kafka-groups --list",
        "kafka-groups --list --consumer",
        "kafka-groups --list --protocol consumer --group-type classic",
        f"{_GROUP} --describe",
        f"{_GROUP} --describe --offsets --verbose",
        f"{_GROUP} --describe --members",
        f"{_GROUP} --describe --state",
        f"{_GROUP} --describe --state --verbose",
        "kafka-consumer-groups --all-groups --describe --offsets",
        "kafka-consumer-groups --group nobody --describe",
        "kafka-consumer-groups --group nobody --describe --members",
        f"{_RESET} --to-offset 7 --dry-run",
        f"{_RESET} --to-offset 7 --execute",
        f"{_GROUP} --describe",
        f"{_RESET} --to-earliest --execute",
        f"{_RESET} --to-latest --execute",
        f"{_RESET} --to-current --execute",
        f"{_RESET} --shift-by -3 --execute",
        f"{_RESET} --shift-by 900 --execute",
        f"{_RESET} --to-offset 900 --execute",
        f"{_RESET} --to-datetime 2020-01-01T00:00:00.000 --execute",
        f"{_RESET} --by-duration PT1H --execute",
        f"{_GROUP} --reset-offsets --all-topics --to-earliest --dry-run",
        f"{_GROUP} --reset-offsets --topic read:0 --to-offset 6 --export --dry-run",
        f"{_GROUP} --reset-offsets --from-file {{offsets}} --execute",
        f"{_GROUP} --reset-offsets --topic nowhere --to-earliest --execute",
        "kafka-consumer-groups --group fresh --reset-offsets --topic read --to-earliest --execute",
        "kafka-consumer-groups --group fresh --describe",
        f"{_GROUP} --delete-offsets --topic read",
        f"{_GROUP} --delete-offsets --topic nowhere",
        "kafka-consumer-groups --group nobody --delete-offsets --topic read",
        f"{_GROUP} --delete",
        f"{_GROUP} --delete",
        "kafka-consumer-groups --group fresh --group nobody --delete",
        "kafka-streams-application-reset --application-id verifying --input-topics single",
        "kafka-streams-application-reset --application-id verifying --input-topics single "
        "--to-offset 1 --dry-run",
        "kafka-share-groups --list",
        "kafka-streams-groups --list",
    ),
)

_LIVE = "kafka-consumer-groups --group live"
_MEMBERS = calls(
    "kafka-consumer-groups --list --state Stable",
    f"{_LIVE} --describe",
    f"{_LIVE} --describe --members",
    f"{_LIVE} --describe --members --verbose",
    f"{_LIVE} --describe --state",
    f"{_LIVE} --reset-offsets --topic read --to-earliest --execute",
    f"{_LIVE} --delete-offsets --topic read",
    f"{_LIVE} --delete",
    "kafka-streams-application-reset --application-id live --input-topics read",
    scene="members",
)

_MODERN = "kafka-consumer-groups --group modern"
_CONSUMERS = calls(
    "kafka-consumer-groups --list --type consumer",
    "kafka-consumer-groups --list --type consumer --state stable",
    "kafka-groups --list",
    "kafka-groups --list --consumer",
    "kafka-groups --list --group-type consumer",
    f"{_MODERN} --describe",
    f"{_MODERN} --describe --verbose",
    f"{_MODERN} --describe --members",
    f"{_MODERN} --describe --members --verbose",
    f"{_MODERN} --describe --state",
    f"{_MODERN} --describe --state --verbose",
    f"{_MODERN} --topic read --reset-offsets --to-earliest --execute",
    f"{_MODERN} --delete-offsets --topic read",
    f"{_MODERN} --delete",
    "kafka-share-groups --group modern --describe",
    "kafka-streams-groups --group modern --describe",
    scene="consumer members",
)
_CONSUMED = calls(
    f"{_MODERN} --describe",
    f"{_MODERN} --describe --members",
    f"{_MODERN} --describe --state --verbose",
    f"{_MODERN} --topic read --reset-offsets --to-offset 7 --execute",
    f"{_MODERN} --delete-offsets --topic read",
    f"{_MODERN} --delete",
)

_SHARING = "kafka-share-groups --group sharing"
_BEFORE_SHARES = calls(
    "kafka-configs --group sharing --alter --add-config share.auto.offset.reset=earliest",
    "kafka-configs --group sharing --alter --add-config share.auto.offset.reset=soon",
    "kafka-configs --group sharing --alter --add-config share.record.lock.duration.ms=1000",
    "kafka-configs --group sharing --describe",
    "kafka-configs --group sharing --describe --all",
    f"{_SHARING} --describe",
    f"{_SHARING} --topic read --reset-offsets --to-earliest --dry-run",
)
_SHARES = calls(
    "kafka-share-groups --list",
    "kafka-share-groups --list --state",
    "kafka-share-groups --list --state Stable",
    "kafka-share-groups --list --state nope",
    "kafka-groups --list",
    "kafka-groups --list --share",
    "kafka-groups --list --group-type share",
    "kafka-groups --list --protocol share",
    f"{_SHARING} --describe",
    f"{_SHARING} --describe --verbose",
    f"{_SHARING} --describe --offsets --verbose",
    f"{_SHARING} --describe --members",
    f"{_SHARING} --describe --members --verbose",
    f"{_SHARING} --describe --state",
    f"{_SHARING} --describe --state --verbose",
    "kafka-share-groups --all-groups --describe --state",
    f"{_SHARING} --topic read --reset-offsets --to-earliest --execute",
    f"{_SHARING} --topic read --delete-offsets",
    f"{_SHARING} --delete",
    "kafka-consumer-groups --group sharing --describe",
    "kafka-consumer-groups --group sharing --describe --members",
    "kafka-consumer-groups --group sharing --topic read --reset-offsets --to-earliest --execute",
    "kafka-consumer-groups --list",
    "kafka-consumer-groups --list --type share",
    "kafka-streams-groups --group sharing --describe",
    scene="share members",
)
_SHARED = (
    *calls(
        "kafka-share-groups --list --state Empty",
        f"{_SHARING} --describe",
        f"{_SHARING} --describe --members",
        f"{_SHARING} --describe --state --verbose",
        f"{_SHARING} --topic read --reset-offsets --to-earliest --dry-run",
        f"{_SHARING} --topic read --reset-offsets --to-earliest --execute",
        f"{_SHARING} --describe",
        f"{_SHARING} --topic read --reset-offsets --to-latest --execute",
        f"{_SHARING} --topic read --reset-offsets --to-datetime 2020-01-01T00:00:00.000 --execute",
        f"{_SHARING} --topic read:0 --reset-offsets --to-earliest --execute",
        f"{_SHARING} --all-topics --reset-offsets --to-earliest --execute",
        f"{_SHARING} --topic nowhere --reset-offsets --to-earliest --execute",
        f"{_SHARING} --topic life --reset-offsets --to-latest --execute",
        f"{_SHARING} --describe",
    ),
    Call(
        line="kafka-console-share-consumer --topic read --group sharing --max-messages 5 "
        "--timeout-ms 20000",
        is_ordered=True,
    ),
    Call(
        line="kafka-console-share-consumer --topic read --group sharing --max-messages 3 "
        "--timeout-ms 20000 --release --formatter-property print.delivery=true",
        is_ordered=True,
    ),
    Call(
        line="kafka-console-share-consumer --topic read --group sharing --max-messages 3 "
        "--timeout-ms 20000 --reject --formatter-property print.delivery=true",
        is_ordered=True,
    ),
    *calls(
        f"{_SHARING} --describe",
        f"{_SHARING} --topic life --delete-offsets",
        f"{_SHARING} --topic squashed --delete-offsets",
        f"{_SHARING} --topic nowhere --delete-offsets",
        f"{_SHARING} --topic read --topic life --delete-offsets",
        f"{_SHARING} --describe",
        "kafka-share-groups --group nobody --describe",
        "kafka-share-groups --group nobody --describe --members",
        "kafka-share-groups --group nobody --topic read --delete-offsets",
        "kafka-share-groups --group nobody --delete",
        "kafka-share-groups --group readers --describe",
        "kafka-share-groups --group readers --topic read --reset-offsets --to-earliest --execute",
        "kafka-share-groups --group readers --delete",
        "kafka-share-groups --group unborn --topic read --reset-offsets --to-earliest --execute",
        "kafka-share-groups --group unborn --describe",
        "kafka-share-groups --group unborn --group nobody --delete",
        f"{_SHARING} --delete",
        f"{_SHARING} --delete",
        "kafka-share-groups --list",
        "kafka-configs --group sharing --describe",
    ),
)

_STREAMS = calls(
    "kafka-streams-groups --list",
    "kafka-streams-groups --list --state",
    "kafka-streams-groups --list --state Stable",
    "kafka-streams-groups --list --state nope",
    "kafka-groups --list --streams",
    "kafka-groups --list --group-type streams",
    "kafka-streams-groups --all-groups --describe",
)

_WHILE_OPEN = calls(
    "kafka-transactions list",
    "kafka-transactions describe --transactional-id nobody",
    "kafka-transactions describe-producers --topic open --partition 0",
    "kafka-transactions find-hanging --topic open --partition 0 --max-transaction-timeout 1",
    "kafka-transactions find-hanging --broker-id 1",
    "kafka-transactions abort --topic open --partition 0 --start-offset 5",
    "kafka-console-consumer --topic open --from-beginning --isolation-level read_committed "
    "--timeout-ms 2000",
    "kafka-get-offsets --topic open --time latest",
    "kafka-transactions abort --topic open --partition 0 --start-offset 0",
    "kafka-transactions describe-producers --topic open --partition 0",
    "kafka-transactions list",
    scene="open transaction",
)
_OPEN = (
    Call(
        line="kafka-transactions describe --transactional-id lingering",
        scene="open transaction",
        hides_figures=True,
    ),
    *_WHILE_OPEN,
)
_AFTERWARDS = calls(
    "kafka-transactions list",
    "kafka-transactions list --duration-filter 1",
    "kafka-transactions list --transactional-id-pattern 'ling.*'",
    "kafka-transactions describe-producers --topic open --partition 0",
    "kafka-transactions forceTerminateTransaction --transactionalId lingering",
    "kafka-get-offsets --topic open --time latest",
)

CALLS = (
    *(*_EMPTY, *_MEMBERS, *_CONSUMERS, *_CONSUMED),
    *(*_BEFORE_SHARES, *_SHARES, *_SHARED, *_STREAMS),
    *(*_OPEN, *_AFTERWARDS),
)
OFFSETS = '"read",0,6\n'
"""The file `offsets` that a call names."""
