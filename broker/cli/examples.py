"""The examples in the help of commands. A test parses each one by the command line that users have.

They stand here and not beside the commands, so that a run of a command does not load them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Example(NamedTuple):
    """A command as a shell takes it, and its purpose in a few words."""

    purpose: str
    command: str


EXAMPLES: Mapping[str, Sequence[Example]] = {
    "start": (
        Example("A node for a look, with its data in ./lakehead-data", "lakehead start"),
        Example(
            "A node without a disk: the log and the data in S3",
            "lakehead start --store s3://bucket/prefix --wal object:",
        ),
        Example(
            "Three nodes on this machine, with metrics and the console",
            "lakehead start --nodes 3 --metrics.port 9464",
        ),
        Example("The settings of a file", "lakehead start --config /etc/lakehead/node.toml"),
    ),
    "demo": (
        Example("All of it in a new folder", "lakehead demo"),
        Example(
            "The same with topics and table in S3, without a disk",
            "lakehead demo --store s3://bucket/demo --wal object:",
        ),
    ),
    "airflow": (
        Example("Airflow beside a demo cluster, at localhost:8080", "lakehead airflow"),
        Example(
            "Airflow for a cluster of yours",
            "lakehead airflow ./my-airflow --path s3://bucket/prefix --port 8090",
        ),
    ),
    "nodes": (
        Example("The nodes of the cluster in ./lakehead-data", "lakehead nodes"),
        Example("Those of a cluster in S3, as JSON", "lakehead nodes -p s3://bucket/prefix --json"),
    ),
    "drain": (
        Example(
            "Empty two nodes before a machine goes down",
            "lakehead drain 4 5 --wait -p s3://bucket/prefix",
        ),
        Example("Let a node lead again", "lakehead drain 4 --undo -p s3://bucket/prefix"),
    ),
    "features describe": (
        Example("The levels in use and those that nodes support", "lakehead features describe"),
    ),
    "features upgrade": (
        Example("After an update of all nodes", "lakehead features upgrade"),
        Example("From a script, to a given level", "lakehead features upgrade --level 2 --yes"),
    ),
    "certs": (
        Example(
            "An authority, a node that clients reach as broker-1, and a client",
            "lakehead certs ./tls --host broker-1 --node node-1 --client app",
        ),
    ),
    "encryption-key": (
        Example("A new key, also for a rotation", "lakehead encryption-key keys.json"),
        Example("A key with a name", "lakehead encryption-key keys.json --id 2026-11"),
    ),
    "registry": (
        Example("A registry for the broker on this machine", "lakehead registry"),
        Example(
            "Beside a cluster, for users with passwords",
            "lakehead registry -b broker-1:9092,broker-2:9092 --host 0.0.0.0 --users users.txt",
        ),
    ),
    "topics list": (
        Example("Topics of the cluster in ./lakehead-data", "lakehead topics list"),
        Example(
            "The largest topic of a cluster in S3",
            "lakehead topics list -p s3://bucket/prefix --json | jq -s 'max_by(.bytes)'",
        ),
    ),
    "topics describe": (
        Example("Configs, leaders and offsets", "lakehead topics describe orders"),
    ),
    "topics create": (
        Example("Six partitions", "lakehead topics create orders --partitions 6"),
        Example(
            "With a Delta table of its JSON values, at most a minute behind",
            "lakehead topics create orders --set lakehead.table.enable=true "
            "--set lakehead.table.value.format=json --set lakehead.table.freshness.ms=60000",
        ),
    ),
    "topics alter": (
        Example(
            "Keep records for a week",
            "lakehead topics alter orders --set retention.ms=604800000",
        ),
        Example(
            "The broker's retention again, and more partitions",
            "lakehead topics alter orders --unset retention.ms --partitions 12",
        ),
    ),
    "topics delete": (
        Example("Delete a topic, after a confirmation", "lakehead topics delete orders"),
        Example("From a script", "lakehead topics delete orders --yes -b broker-1:9092"),
    ),
    "connect run": (
        Example("Copy what there is, and end", "lakehead connect run orders.toml"),
        Example("Copy until Ctrl-C", "lakehead connect run orders.toml --follow"),
    ),
    "connect positions": (
        Example("The positions of a connector", "lakehead connect positions orders.toml"),
    ),
    "sql": (
        Example("A shell", "lakehead sql"),
        Example("One statement", "lakehead sql -e 'SELECT count(*) FROM orders'"),
        Example(
            "Fields of JSON values of a topic that declares no format, as CSV",
            "lakehead sql -j 'orders=id bigint, name string' --format csv "
            "-e 'SELECT id, name FROM orders'",
        ),
    ),
    "tables": (
        Example("Every declared table", "lakehead tables"),
        Example("One of them, for a script", "lakehead tables orders --json"),
    ),
    "table-version": (
        Example("The version as of a time", "lakehead table-version orders 2026-01-31T00:00:00Z"),
        Example("As of what a group has committed", "lakehead table-version orders group:billing"),
    ),
    "materialize": (
        Example("The declared tables that are due", "lakehead materialize"),
        Example("Keep all of them fresh", "lakehead materialize --follow --metrics 9405"),
        Example(
            "A topic that declares no table",
            "lakehead materialize orders --schema 'id bigint, name string' --on-error dead_letter",
        ),
    ),
    "replay-dead-letters": (
        Example(
            "After the table's declaration was mended",
            "lakehead replay-dead-letters orders --dry-run",
        ),
    ),
    "optimize": (
        Example("The tables that are due", "lakehead optimize"),
        Example("One table, due or not", "lakehead optimize orders"),
    ),
    "vacuum": (
        Example("Names of files that would go", "lakehead vacuum --dry-run --every-name"),
        Example("Keep versions of thirty days", "lakehead vacuum orders --retention-hours 720"),
    ),
    "rebuild-table": (
        Example("The work and its size", "lakehead rebuild-table orders --dry-run"),
        Example(
            "Also where retention has removed records, from a script",
            "lakehead rebuild-table orders --without-history --yes",
        ),
    ),
    "attest": (
        Example("All of a table", "lakehead attest orders --processes 4"),
        Example("A tenth of it, as JSON", "lakehead attest orders --sample 10 --json"),
    ),
    "forget": (
        Example("The work and its size", "lakehead forget orders --key customer-7 --dry-run"),
        Example(
            "Also what objects do not have yet; the key from a file",
            "lakehead forget orders --key @keys.txt -b localhost:9092 --yes",
        ),
        Example("Is everything gone?", "lakehead forget orders --check 1"),
    ),
    "maintain": (
        Example("Show the work that is due", "lakehead maintain --dry-run"),
        Example(
            "Beside nodes that do no maintenance themselves",
            "lakehead maintain --follow -p s3://bucket/prefix --metrics 9405",
        ),
    ),
    "compact-objects": (
        Example("Show the merges that are due", "lakehead compact-objects --dry-run"),
        Example("By four processes", "lakehead compact-objects --processes 4"),
        Example("After a rotation of the key", "lakehead compact-objects --reencrypt"),
    ),
    "compact-topics": (
        Example("Every topic that is due", "lakehead compact-topics"),
        Example("One topic", "lakehead compact-topics customers --dry-run"),
    ),
    "apply-retention": (
        Example("Show the records that retention deletes", "lakehead apply-retention --dry-run"),
        Example("Of one topic", "lakehead apply-retention orders"),
    ),
    "sweep": (
        Example("Show each object that would go, and the reason", "lakehead sweep --dry-run"),
        Example("From a script", "lakehead sweep --yes -p s3://bucket/prefix"),
    ),
    "doctor": (
        Example("Before the first start", "lakehead doctor"),
        Example(
            "With the settings of a node",
            "lakehead doctor --config /etc/lakehead/node.toml --json",
        ),
    ),
    "top": (
        Example("Live", "lakehead top"),
        Example("Two looks into a file", "lakehead top --count 2 > looks.txt"),
    ),
    "why": (
        Example("Partition 0 of orders", "lakehead why orders-0"),
        Example("With the lag of groups", "lakehead why orders-0 -b localhost:9092"),
    ),
    "support": (
        Example(
            "With a node's metrics and log",
            "lakehead support --metrics http://127.0.0.1:9464 --log node.log",
        ),
    ),
    "inspect state": (Example("The cluster in one look", "lakehead inspect state"),),
    "inspect log": (
        Example("The newest 50 entries", "lakehead inspect log --last 50"),
        Example("An entry in full", "lakehead inspect log 1207"),
    ),
    "inspect checkpoint": (
        Example("All checkpoints", "lakehead inspect checkpoint"),
        Example("The topics in one", "lakehead inspect checkpoint 1200 --table topics"),
    ),
    "inspect objects": (
        Example("Objects with records of a topic", "lakehead inspect objects -t orders"),
    ),
    "inspect object": (
        Example("Each record batch of an object", "lakehead inspect object KEY --batches"),
    ),
    "inspect wal": (
        Example(
            "The block WAL of a node that is stopped",
            "lakehead inspect wal ./lakehead-data/wal",
        ),
        Example("An object WAL, record by record", "lakehead inspect wal object: --records"),
    ),
    "inspect keys": (Example("Can an old key go?", "lakehead inspect keys -p s3://bucket/prefix"),),
    "verify": (
        Example("All of a cluster", "lakehead verify --processes 4"),
        Example("A hundredth of it, each night", "lakehead verify --sample 1 --seed 27"),
    ),
    "import": (
        Example(
            "All topics of a cluster, into a new one in S3",
            "lakehead import kafka-1:9092 -p s3://bucket/prefix",
        ),
        Example(
            "The same, and what producers write until Ctrl-C",
            "lakehead import kafka-1:9092 -p s3://bucket/prefix --follow",
        ),
        Example(
            "Compare both sides of a topic, record by record",
            "lakehead import kafka-1:9092 -p s3://bucket/prefix --topic orders --verify",
        ),
    ),
    "backup": (
        Example(
            "A copy in another region, made once",
            "lakehead backup s3://copies/orders -p s3://bucket/prefix",
        ),
        Example(
            "A copy that stays seconds behind, until SIGTERM",
            "lakehead backup s3://copies/orders -p s3://bucket/prefix --follow --interval 5",
        ),
    ),
    "restore": (
        Example(
            "Show the content of the copy, and its time",
            "lakehead restore s3://copies/orders --dry-run",
        ),
        Example(
            "A new cluster in an empty prefix",
            "lakehead restore s3://copies/orders s3://bucket/restored",
        ),
        Example(
            "The copy itself becomes the cluster", "lakehead restore s3://copies/orders --in-place"
        ),
        Example(
            "A prefix that S3 has replicated becomes the cluster",
            "lakehead restore s3://copies/orders --in-place --replicated",
        ),
        Example(
            "The same of a region that was lost this minute",
            "lakehead restore s3://copies/orders --in-place --replicated --force",
        ),
    ),
    "runs": (
        Example("The last runs of jobs, on any machine", "lakehead runs -p s3://bucket/prefix"),
        Example("For a program", "lakehead runs --count 100 --json"),
    ),
    "leak-check": (Example("Is the bucket what the metadata says?", "lakehead leak-check"),),
    "rebuild-catalog": (
        Example(
            "Show the topics that objects still have",
            "lakehead rebuild-catalog -p s3://bucket/prefix --dry-run",
        ),
        Example(
            "Instead of metadata that can be read, from a script",
            "lakehead rebuild-catalog --replace --yes -p s3://bucket/prefix",
        ),
    ),
    "rolling-update": (
        Example(
            "The steps of a change",
            "lakehead rolling-update infra/terraform/examples/multi-az-object-wal --dry-run",
        ),
        Example(
            "A new wheel on every host",
            "lakehead rolling-update --var lakehead_wheel=s3://packages/lakehead.whl --yes",
        ),
    ),
    "slot claim": (
        Example("Before the first start", "lakehead slot claim --write /run/lakehead/slot.env"),
    ),
    "settings list": (
        Example("All of them, page by page", "lakehead settings list | less"),
        Example("Those about retention", "lakehead settings list retention"),
    ),
    "settings check": (
        Example("Before a restart", "lakehead settings check /etc/lakehead/node.toml"),
    ),
    "settings secrets": (
        Example(
            "Of a host with TLS",
            "lakehead settings secrets /etc/lakehead/node.toml /run/lakehead --prefix lakehead "
            "--region eu-central-1",
        ),
    ),
    "settings serving": (
        Example("After a start", "lakehead settings serving /etc/lakehead/node.toml --timeout 120"),
    ),
    "settings roll": (
        Example(
            "New settings, without an error of a client",
            "lakehead settings roll /etc/lakehead/node.toml new.toml "
            "--restart 'systemctl restart lakehead'",
        ),
    ),
}
"""Examples by the command's name, without the word `lakehead`."""
