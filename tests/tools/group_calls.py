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

CALLS = (*_EMPTY, *_MEMBERS, *_OPEN, *_AFTERWARDS)
OFFSETS = '"read",0,6\n'
"""The file `offsets` that a call names."""
