"""Calls about topics, records, configs and the cluster, in the order in which they are made."""

import json

from tests.tools.call import Call, calls

_LINES = "".join(f"key{number}:{number}\n" for number in range(30))


def _plan(topic: str, *replicas: int) -> str:
    partitions = [{"topic": topic, "partition": n, "replicas": [r]} for n, r in enumerate(replicas)]
    return json.dumps({"version": 1, "partitions": partitions})


FILES = {
    "trim": json.dumps(
        {"version": 1, "partitions": [{"topic": "read", "partition": 0, "offset": 5}]}
    ),
    "trim-far": json.dumps(
        {"version": 1, "partitions": [{"topic": "read", "partition": 0, "offset": 99}]}
    ),
    "move": json.dumps({"version": 1, "topics": [{"topic": "life"}]}),
    "plan": _plan("life", 1, 1),
    "plan-nowhere": _plan("life", 7, 7),
    "elect": json.dumps({"partitions": [{"topic": "life", "partition": 0}]}),
    "settings": "retention.ms=7200000\nmax.message.bytes=60000\n",
    "commands": "client.id=tool\n",
}
"""The files that calls name, by the word in braces."""

_TOPICS = (
    *calls(
        "kafka-configs --broker-defaults --alter --add-config min.insync.replicas=1",
        "kafka-topics --create --topic life --partitions 2 --config retention.ms=3600000",
        "kafka-topics --create --topic life",
        "kafka-topics --create --topic life --if-not-exists",
        "kafka-topics --create --topic defaulted",
        "kafka-topics --create --topic 'a b'",
        "kafka-topics --create --topic x --config nope=1",
        "kafka-topics --create --topic x --config retention.ms=soon",
        "kafka-topics --create --topic x --config cleanup.policy=burn",
        "kafka-topics --create --topic x --replication-factor 9",
        "kafka-topics --create --topic x --partitions 0",
        "kafka-topics --create --topic placed --replica-assignment 1,1,1",
        "kafka-topics --create --topic squashed --config cleanup.policy=compact "
        "--config min.cleanable.dirty.ratio=0.2",
        "kafka-topics --create --topic with.dot",
        "kafka-topics --create --topic with_dot",
        "kafka-topics --create --topic read --partitions 1",
        "kafka-topics --create --topic open --partitions 1",
        "kafka-topics --create --topic single --partitions 1",
        "kafka-topics --list",
        "kafka-topics --list --topic 'l.*'",
        "kafka-topics --describe --topic life",
        "kafka-topics --describe",
        "kafka-topics --describe --topic nowhere",
        "kafka-topics --describe --topic nowhere --if-exists",
        "kafka-topics --describe --topics-with-overrides",
        "kafka-topics --describe --under-replicated-partitions",
        "kafka-topics --describe --unavailable-partitions",
        "kafka-topics --describe --under-min-isr-partitions",
        "kafka-topics --describe --at-min-isr-partitions",
        "kafka-topics --describe --topic life --partition-size-limit-per-response 1",
        "kafka-topics --alter --topic life --partitions 4",
        "kafka-topics --alter --topic life --partitions 3",
        "kafka-topics --alter --topic life --partitions 4",
        "kafka-topics --alter --topic nowhere --partitions 4",
        "kafka-topics --alter --topic defaulted --partitions 6 --replica-assignment 1,1,1,1,1,9",
        "kafka-topics --describe --topic life",
    ),
)

_RECORDS = (
    Call(
        line="kafka-console-producer --topic read "
        "--reader-property parse.key=true --reader-property key.separator=:",
        stdin=_LINES,
    ),
    Call(
        line="kafka-console-consumer --topic read --from-beginning --max-messages 30 "
        "--formatter-property print.key=true --formatter-property print.offset=true "
        "--formatter-property print.partition=true --timeout-ms 20000",
        is_ordered=True,
    ),
    Call(
        line="kafka-console-consumer --topic read --partition 0 --offset 27 --timeout-ms 3000",
        is_ordered=True,
    ),
    Call(line="kafka-console-producer --topic read --compression-codec zstd", stdin="packed\n"),
    Call(
        line="kafka-console-consumer --topic read --partition 0 --offset 30 --max-messages 1 "
        "--isolation-level read_committed",
    ),
    *calls(
        "kafka-get-offsets --topic read",
        "kafka-get-offsets --topic read --time -1",
        "kafka-get-offsets --topic read --time -2",
        "kafka-get-offsets --topic read --time -3",
        "kafka-get-offsets --topic read --time -4",
        "kafka-get-offsets --topic read --time -5",
        "kafka-get-offsets --topic read --time earliest",
        "kafka-get-offsets --topic read --time latest",
        "kafka-get-offsets --topic read --time max-timestamp",
        "kafka-get-offsets --topic read --time earliest-local",
        "kafka-get-offsets --topic read --time latest-tiered",
        "kafka-get-offsets --topic read --time 1",
        "kafka-get-offsets --topic read --time soon",
        "kafka-get-offsets --topic life --partitions 0,2",
        "kafka-get-offsets --topic-partitions 'li.*:1-2,read:0'",
        "kafka-get-offsets --topic nowhere",
        "kafka-get-offsets --exclude-internal-topics",
        "kafka-delete-records --offset-json-file {trim}",
        "kafka-delete-records --offset-json-file {trim-far}",
        "kafka-get-offsets --topic read --time earliest",
    ),
    Call(
        line="kafka-verifiable-producer --topic single --max-messages 20 --acks -1",
        hides_figures=True,
    ),
    Call(
        line="kafka-verifiable-consumer --topic single --group-id verifying --max-messages 20 "
        "--reset-policy earliest",
        hides_figures=True,
    ),
    Call(
        line="kafka-e2e-latency --topic single --num-records 50 --producer-acks all "
        "--record-size 100",
        hides_figures=True,
    ),
    Call(
        line="kafka-producer-perf-test --topic single --num-records 100 --record-size 100 "
        "--throughput -1",
        hides_figures=True,
    ),
    Call(
        line="kafka-consumer-perf-test --topic single --num-records 100 --timeout 20000",
        hides_figures=True,
    ),
)

_LOGGERS = "kafka-configs --entity-type broker-loggers --entity-name 1"
_LIFE = "kafka-configs --entity-type topics --entity-name life"
_CONFIGS = calls(
    f"{_LIFE} --describe",
    f"{_LIFE} --describe --all",
    f"{_LIFE} --alter --add-config max.message.bytes=5000,cleanup.policy=[compact,delete]",
    f"{_LIFE} --alter --add-config-file {{settings}}",
    f"{_LIFE} --alter --add-config segment.bytes=none",
    f"{_LIFE} --alter --add-config nope=1",
    f"{_LIFE} --describe",
    f"{_LIFE} --alter --delete-config max.message.bytes",
    f"{_LIFE} --alter --delete-config max.message.bytes",
    f"{_LIFE} --alter --delete-config nope",
    f"{_LIFE} --describe",
    "kafka-configs --topic squashed --describe",
    "kafka-configs --entity-type topics --describe",
    "kafka-configs --topic nowhere --describe",
    "kafka-configs --topic nowhere --alter --add-config retention.ms=1",
    "kafka-configs --entity-type brokers --entity-default --describe",
    "kafka-configs --broker-defaults --alter --add-config message.max.bytes=2000000",
    "kafka-configs --broker-defaults --describe",
    "kafka-configs --broker 1 --alter --add-config log.cleaner.threads=2",
    "kafka-configs --broker 1 --alter --add-config max.connections=5000",
    "kafka-configs --broker-defaults --alter --add-config producer.id.expiration.ms=3600000",
    "kafka-configs --broker 1 --alter --add-config producer.id.expiration.ms=0",
    "kafka-configs --broker 1 --alter --add-config num.partitions=9",
    "kafka-configs --broker 1 --alter --add-config nope=9",
    "kafka-configs --broker 1 --describe",
    "kafka-configs --broker 1 --describe --all",
    "kafka-configs --broker 9 --describe",
    "kafka-configs --broker 1 --alter --delete-config log.cleaner.threads,max.connections",
    "kafka-configs --broker-defaults --alter --delete-config message.max.bytes",
    "kafka-configs --broker-defaults --alter --delete-config producer.id.expiration.ms",
    f"{_LOGGERS} --describe",
    f"{_LOGGERS} --alter --add-config root=WARN",
    f"{_LOGGERS} --describe",
    f"{_LOGGERS} --alter --add-config root=LOUD",
    f"{_LOGGERS} --alter --add-config nope=INFO",
    f"{_LOGGERS} --alter --delete-config root",
    "kafka-configs --group team --alter --add-config consumer.session.timeout.ms=50000",
    "kafka-configs --group team --alter --add-config consumer.session.timeout.ms=1",
    "kafka-configs --group team --alter --add-config nope=1",
    "kafka-configs --group team --describe",
    "kafka-configs --group team --alter --delete-config consumer.session.timeout.ms",
    "kafka-configs --user ann --alter --add-config producer_byte_rate=1024",
    "kafka-configs --user ann --client app --alter --add-config request_percentage=50",
    "kafka-configs --client app --alter --add-config consumer_byte_rate=2048",
    "kafka-configs --client app --alter --add-config nope=2048",
    "kafka-configs --client-defaults --alter --add-config consumer_byte_rate=4096",
    "kafka-configs --user ann --describe",
    "kafka-configs --entity-type users --describe",
    "kafka-configs --entity-type users --entity-type clients --describe",
    "kafka-configs --entity-type clients --describe",
    "kafka-configs --user ann --alter --delete-config producer_byte_rate",
    "kafka-configs --client-metrics push --alter --add-config interval.ms=1000",
    "kafka-configs --client-metrics push --describe",
    "kafka-configs --client-metrics push --alter --add-config nope=1",
    "kafka-client-metrics --alter --name all --metrics * --match client_id=a,client_id=b",
    "kafka-client-metrics --alter --name bad --interval 5",
    "kafka-client-metrics --alter --name bad --match nope=1",
    "kafka-client-metrics --list",
    "kafka-client-metrics --describe",
    "kafka-client-metrics --describe --name nope",
    "kafka-client-metrics --delete --name all",
    "kafka-client-metrics --delete --name all",
    "kafka-configs --entity-type client-metrics --describe",
    "kafka-configs --ip 10.0.0.1 --alter --add-config connection_creation_rate=5",
    "kafka-configs --ip 10.0.0.1 --describe",
)

_CLUSTER = calls(
    "kafka-cluster cluster-id @",
    "kafka-cluster list-endpoints @",
    "kafka-cluster unregister @ --id 9",
    "kafka-broker-api-versions",
    "kafka-metadata-quorum describe --status",
    "kafka-metadata-quorum describe --replication",
    "kafka-features describe",
    "kafka-features upgrade --feature group.version=1",
    "kafka-features upgrade --feature nope.version=1",
    "kafka-features downgrade --feature transaction.version=0 --dry-run",
    "kafka-log-dirs --describe --topic-list read",
    "kafka-log-dirs --describe --broker-list 1 --topic-list squashed",
    "kafka-leader-election --election-type preferred --topic life --partition 0",
    "kafka-leader-election --election-type preferred --all-topic-partitions",
    "kafka-leader-election --election-type unclean --path-to-json-file {elect}",
    "kafka-leader-election --election-type preferred --topic nowhere --partition 0",
    "kafka-reassign-partitions --topics-to-move-json-file {move} --broker-list 1 --generate",
    "kafka-reassign-partitions --reassignment-json-file {plan} --execute",
    "kafka-reassign-partitions --reassignment-json-file {plan} --verify",
    "kafka-reassign-partitions --reassignment-json-file {plan-nowhere} --execute",
    "kafka-reassign-partitions --list",
    "kafka-reassign-partitions --reassignment-json-file {plan} --cancel",
)

_ENDS = calls(
    "kafka-topics --delete --topic placed",
    "kafka-topics --delete --topic nowhere",
    "kafka-topics --delete --topic nowhere --if-exists",
    "kafka-topics --list --exclude-internal",
)

BEFORE = (*_TOPICS, *_RECORDS, *_CONFIGS, *_CLUSTER)
AFTER = _ENDS
