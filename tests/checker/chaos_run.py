"""One chaos run: a cluster of real processes, clients, faults, and the verdict on what they saw."""

import gzip
import pickle
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.lakehead_cluster import LakeheadCluster, Place
from bench.s3_server import NotBuilt, program, running_server
from lakehead.broker.cluster.read_replicas import TailSource
from lakehead.broker.settings import RACK_AWARE
from lakehead.storage.encryption.key_file import add_key
from tests.checker import clocks, fault_plan, namespaces, report
from tests.checker.clocks import WallClock
from tests.checker.figures import figures
from tests.checker.history import History, Log
from tests.checker.namespaces import Network
from tests.checker.nemesis import Nemesis, Targets
from tests.checker.rules import violations
from tests.checker.share_clients import ShareClients, ShareLoad
from tests.checker.share_history import ShareHistory, Verdict
from tests.checker.share_member_process import name_of
from tests.checker.share_rules import (
    Reason,
    ShareLimits,
    Values,
    no_reason,
    share_violations,
    unfinished,
)
from tests.checker.table_jobs import TableJobs, TableLoad
from tests.checker.table_rules import TableView, table_violations
from tests.checker.table_rules import Values as RowValues
from tests.checker.transaction_clients import (
    AUTO_COMMIT,
    COPIES,
    JAVA_COPIES,
    TransactionClients,
    TransactionLoad,
    has_java,
)
from tests.checker.transaction_history import Fate, TransactionHistory
from tests.checker.transaction_rules import (
    CommittedLog,
    copy_violations,
    delivery_violations,
    fractured,
    reason_unseen,
    transaction_violations,
)
from tests.checker.workload import Clients, Load
from tests.support.s3_proxy import running_proxy
from tests.support.secure_cluster import Rule, SecureCluster, User, add_user
from tests.support.share_group_configs import READ_COMMITTED
from tests.support.traffic import create_topic, read_log
from tests.support.waiting import wait_until

TOPIC = "chaos"
TRANSACTIONS_TOPIC = "chaos-transactions"
SHARE_GROUP, COMMITTED_SHARE_GROUP = "chaos-share", "chaos-share-committed"
PORT = 9092
SESSION_S = 3.0
SLACK_S = 0.5
HEAL_S = 30.0
"""When every fault has ended, each partition takes records again within this."""
STUCK_S = 60.0
TRANSACTION_PAUSE_S = 0.05
ANSWERS_S = 90.0
QUIET_START_S = 2.0
SHARE_LOCK_S = 5.0
DELIVERIES_MAX = 5
DRAIN_S = 180.0
JAVA_MEMBERS_FROM_S = 30.0
"""In shorter runs a JVM would take the time of all others."""
USER, PASSWORD = "chaos", "chaos-s3cret"
RULES = (
    Rule("TOPIC", TOPIC, "PREFIXED", ("CREATE", "READ", "WRITE")),
    Rule("GROUP", "*", "LITERAL", ("READ",)),
    Rule("TRANSACTIONAL_ID", TOPIC, "PREFIXED", ("WRITE", "DESCRIBE")),
)
QUOTAS: Mapping[str, float] = {
    "producer_byte_rate": 1 << 30,
    "consumer_byte_rate": 1 << 30,
    "request_percentage": 100,
    "controller_mutation_rate": 1000,
}
"""On, and above what the clients do."""
FLAGS = (
    *("--upload.size", "1m", "--upload.age.ms", "500", "--cache.size", "16m"),
    *("--metadata.checkpoint.entries", "50", "--offsets.topic.num.partitions", "3"),
    *("--broker.session.timeout.ms", str(int(SESSION_S * 1000))),
    *("--group.consumer.session.timeout.ms", "6000"),
    *("--group.consumer.heartbeat.interval.ms", "1000"),
    *("--group.share.session.timeout.ms", "6000", "--group.share.heartbeat.interval.ms", "1000"),
    *("--group.share.record.lock.duration.ms", str(int(SHARE_LOCK_S * 1000))),
    *("--group.share.delivery.count.limit", str(DELIVERIES_MAX)),
    *("--share.coordinator.state.topic.num.partitions", "3"),
    *("--share.coordinator.snapshot.update.records.per.snapshot", "50"),
    *("--replica.selector.class", RACK_AWARE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes, faults and kind of a run."""

    seconds: float
    seed: int
    wal: str
    folder: Path
    """Where the report goes."""
    store: str = "s3"
    nodes: int = 3
    partitions: int = 6
    records_per_s: float = 100.0
    """Of each of three producers."""
    security: str = ""
    """SASL_SSL: clients by TLS, with names, rules and quotas; mutual TLS between nodes."""
    is_encrypted: bool = False
    """True: objects, write-ahead logs and metadata are encrypted, by a key file."""
    has_tables: bool = True
    """True: jobs bring the topics into tables meanwhile."""
    tail: TailSource = TailSource.LEADER
    """From where nodes have the newest records for consumers of their zone."""

    @property
    def zones(self) -> tuple[str, ...]:
        """The zone of each node."""
        return tuple(f"zone-{number}" for number in range(self.nodes))


class ChaosRun:
    """Everything that one run needs, from its start to its report."""

    def __init__(self, options: Options, stack: ExitStack) -> None:
        self.options = options
        self.notes: list[str] = []
        self.anomalies: list[str] = []
        self.history = History()
        self.transaction_history = TransactionHistory()
        self.share_histories = {SHARE_GROUP: ShareHistory(), COMMITTED_SHARE_GROUP: ShareHistory()}
        self.work = Path(tempfile.mkdtemp(prefix="lakehead-chaos-"))
        self.secure: SecureCluster | None = None
        self.tables: TableJobs | None = None
        self.targets = self._targets(stack)

    @property
    def bootstrap(self) -> str:
        return self.targets.cluster.bootstrap

    def run(self) -> report.Run:
        """Do it, and judge."""
        options = self.options
        user = self._user()
        load = Load(
            bootstrap=self.bootstrap,
            topic=TOPIC,
            partitions=options.partitions,
            records_per_s=options.records_per_s,
            user=user,
            zones=options.zones,
            reads_ahead=options.tail is TailSource.WAL,
        )
        self.security = load.librdkafka
        has_java = self._has_java()
        self.transaction_load = TransactionLoad(
            bootstrap=self.bootstrap,
            topic=TRANSACTIONS_TOPIC,
            partitions=options.partitions,
            source=TOPIC,
            has_java=has_java,
            pause_s=TRANSACTION_PAUSE_S,
            security=self.security,
        )
        for topic in (TOPIC, *self.transaction_load.topics):
            create_topic(self.bootstrap, topic, options.partitions, security=self.security)
        clients = Clients(load, self.history, options.seed)
        transactions = TransactionClients(
            self.transaction_load, self.transaction_history, options.seed
        )
        shares = self._shares(has_java)
        for one in shares:  # before any client runs, which would be left if it failed
            one.configure(admin=self._admin)
        if self.tables is not None:
            self.tables.declare(self.bootstrap, self._admin)
        plan = fault_plan.plan(options.seed, options.seconds, self.targets.kinds())
        nemesis = Nemesis(self.targets, plan)
        began = time.monotonic()
        clients.start()
        transactions.start()
        for one in shares:
            one.start()
        if self.tables is not None:
            self.tables.start()
        time.sleep(QUIET_START_S)
        nemesis.start()
        self._watch(began, nemesis)
        nemesis.finish()
        self._judge_healing()
        hanging = clients.finish(ANSWERS_S)
        ended = time.monotonic()
        hanging += [name for one in shares for name in one.finish(ANSWERS_S)]
        self.anomalies += nemesis.troubles + [f"client hangs: {one}" for one in hanging]
        log = self._judge_log()
        committed = self._judge_transactions(transactions, log)
        self._judge_shares(shares, nemesis, log, committed)
        self._judge_tables(log, committed)
        self._judge_zones(clients)
        errors = (*clients.errors, *transactions.errors, *(e for one in shares for e in one.errors))
        self.notes += sorted({f"client: {error}"[:200] for error in errors})
        found = figures(self.history, began=began, ended=ended)
        self.anomalies += [f"stuck: {gap}" for gap in found.gaps if gap.seconds > STUCK_S]
        if found.lag_max > STUCK_S:
            self.anomalies.append(f"unread: no consumer saw a record for {found.lag_max:.0f} s")
        return report.Run(
            title=(
                f"chaos: {options.wal} WAL, {options.nodes} nodes, seed {options.seed}"
                f"{', ' + options.security if options.security else ''}"
                f"{', encrypted' if options.is_encrypted else ''}"
            ),
            began=began,
            figures=found,
            events=sorted(nemesis.events, key=lambda event: event.begun),
            anomalies=self.anomalies,
            notes=self.notes,
        )

    def _user(self) -> User | None:
        """Return the user of all clients, with rules and quotas; None without security."""
        if self.secure is None:
            return None
        user = self.secure.user(USER, PASSWORD)
        add_user(self.bootstrap, self.secure.user(), user, rules=RULES, quotas=QUOTAS)
        return user

    def _watch(self, began: float, nemesis: Nemesis) -> None:
        """Wait for the plan's end; a line now and then says how it goes."""
        while (passed := time.monotonic() - began) < self.options.seconds:
            time.sleep(min(5.0, self.options.seconds - passed))
            print(
                f"{time.monotonic() - began:6.0f} s  "
                f"{self.history.acknowledged_total:>9,} acknowledged  "
                f"{len(nemesis.events):>4} faults",
                flush=True,
            )

    def _judge_healing(self) -> None:
        healed = time.monotonic()
        partitions = range(self.options.partitions)
        if not wait_until(
            lambda: all(self.history.latest.get(p, 0.0) > healed for p in partitions), HEAL_S
        ):
            stuck = [p for p in partitions if self.history.latest.get(p, 0.0) <= healed]
            self.anomalies.append(f"liveness: partitions {stuck} take nothing {HEAL_S} s after all")

    def _judge_zones(self, clients: Clients) -> None:
        if not clients.in_zone[True]:
            self.anomalies.append("zones: no consumer of a zone has read from a node of its zone")
        self.notes.append(
            f"zones: {clients.in_zone[True]:,} seconds of a partition read from the zone's node, "
            f"{clients.in_zone[False]:,} from its leader"
        )

    def _judge_log(self) -> Log:
        try:
            log = read_log(
                self.bootstrap,
                TOPIC,
                self.options.partitions,
                deadline_s=ANSWERS_S,
                security=self.security,
            )
        except Exception as error:
            self.anomalies.append(f"unseen: the log cannot be read to its end: {error}")
            return {}
        self.anomalies += violations(self.history, log, staleness_s=SESSION_S + SLACK_S)
        return log

    def _judge_transactions(self, clients: TransactionClients, log: Log) -> CommittedLog:
        """Judge, and return what readers of committed records saw of the writers' topic."""
        load, history = self.transaction_load, self.transaction_history
        try:
            hanging = clients.finish(ANSWERS_S)
            seen = clients.read(load.topic)
            copies = {
                suffix: (clients.read(load.named(suffix)), clients.committed(suffix))
                for suffix in [COPIES] + [JAVA_COPIES] * load.has_java
            }
            given = clients.committed(AUTO_COMMIT)
        except Exception as error:
            self.anomalies.append(f"transactions: {error!r}")
            return {}
        self.anomalies += [f"client hangs: {one}" for one in hanging]
        self.anomalies += transaction_violations(history, seen)
        source = {p: [value.decode() for _, value in records] for p, records in log.items()}
        for suffix, (copy, committed) in copies.items():
            self.anomalies += [
                f"{suffix}: {one}" for one in copy_violations(source, copy, committed)
            ]
            self.notes.append(f"{suffix}: {sum(committed.values()):,} records")
        self.anomalies += delivery_violations(history.delivered, given)
        self.notes.append(f"automatic commits: up to {sum(given.values()):,} records")
        fates = Counter(one.fate for one in history.transactions.values())
        self.notes.append(
            f"transactions: {fates[Fate.COMMITTED]:,} committed, {fates[Fate.ABORTED]:,} aborted, "
            f"{fates[Fate.OPEN]:,} left; {sum(map(len, history.readings.values())):,} values read "
            f"meanwhile, {fractured(history, seen):,} transactions read others in part"
        )
        return seen

    def _shares(self, has_java: bool) -> list[ShareClients]:
        """Return the members of two share groups, of which one reads committed records."""
        plain = ShareLoad(
            bootstrap=self.bootstrap,
            topic=TOPIC,
            group=SHARE_GROUP,
            lock_s=SHARE_LOCK_S,
            deliveries_max=DELIVERIES_MAX,
            has_java=has_java and self.options.seconds >= JAVA_MEMBERS_FROM_S,
            security=self.security,
        )
        committed = replace(
            plain,
            topic=TRANSACTIONS_TOPIC,
            group=COMMITTED_SHARE_GROUP,
            has_java=False,
            configs=READ_COMMITTED,
        )
        return [
            ShareClients(load, self.share_histories[load.group], self.options.seed)
            for load in (plain, committed)
        ]

    def _judge_shares(
        self, shares: Sequence[ShareClients], nemesis: Nemesis, log: Log, committed: CommittedLog
    ) -> None:
        """Have the groups take what is left, and judge."""
        plain = {p: [(o, name_of(value)) for o, value in records] for p, records in log.items()}
        logs: list[Values] = [plain, committed]
        reasons: tuple[Reason, Reason] = (
            no_reason,
            partial(reason_unseen, self.transaction_history),
        )
        with ThreadPoolExecutor() as pool:
            drained = pool.map(lambda one, log: one.drain(log, DRAIN_S), shares, logs)
            self.anomalies += [trouble for trouble in drained if trouble]
        limits = ShareLimits(
            deliveries_max=DELIVERIES_MAX,
            lock_s=SHARE_LOCK_S,
            faults=[(event.begun, event.ended) for event in nemesis.events],
        )
        for one, values, reason in zip(shares, logs, reasons, strict=True):
            group, history = one.load.group, one.history
            found = share_violations(history, values, limits, unseen=reason)
            self.anomalies += [f"{group}: {breach}" for breach in found]
            counts = history.counts
            self.notes.append(
                f"{group}: {history.delivered_total:,} deliveries of "
                f"{len(history.deliveries):,} records; "
                + ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in Verdict)
                + f" confirmed, {counts[None]:,} verdicts without it; "
                f"{unfinished(history, values, DELIVERIES_MAX):,} records ended unseen"
            )

    def _judge_tables(self, log: Log, committed: CommittedLog) -> None:
        """Bring the tables up to the logs, and judge each version that was seen."""
        tables = self.tables
        if tables is None:
            return
        tables.finish()
        logs: dict[str, RowValues] = {
            TOPIC: log,
            TRANSACTIONS_TOPIC: {
                partition: [(offset, value.encode()) for offset, value in records]
                for partition, records in committed.items()
            },
        }
        try:
            tables.complete(logs)
            shown = tables.iceberg_rows()
        except Exception as error:
            self.anomalies.append(f"tables: {error!r}")
            return
        for topic, values in logs.items():
            self.anomalies += table_violations(topic, values, tables.views.get(topic, []))
        iceberg = [TableView(-1, shown)]
        self.anomalies += table_violations("Iceberg", logs[TRANSACTIONS_TOPIC], iceberg)
        self.notes += sorted({f"table: {error}"[:200] for error in tables.errors})
        seen = {topic: len(views) for topic, views in tables.views.items()}
        self.notes.append(
            f"tables: {tables.killed} jobs killed, views of versions: "
            + ", ".join(f"{count} of {topic}" for topic, count in seen.items())
            + f"; {len(shown):,} rows in Iceberg"
        )

    def _iceberg(self, warehouse: str) -> dict[str, str]:
        catalog = self.work / "iceberg.db"
        return {"type": "sql", "uri": f"sqlite:///{catalog}", "warehouse": warehouse}

    @property
    def _admin(self) -> Mapping[str, str | int | float]:
        """Settings of a client that may do everything, beside the address."""
        return {} if self.secure is None else self.secure.user().librdkafka

    def _has_java(self) -> bool:
        if self.security:
            self.notes.append("no transactions by Java: its copier has no settings for security")
            return False
        if not has_java():
            self.notes.append("no transactions by Java: there is no Java, or no jars of Kafka")
            return False
        return True

    def _targets(self, stack: ExitStack) -> Targets:
        options = self.options
        network = None
        if obstacle := namespaces.obstacle():
            self.notes.append(f"no cut networks: {obstacle}")
        else:
            network = stack.enter_context(Network(options.nodes))
        own_clocks: list[WallClock] = []
        if clocks.library() is None:
            self.notes.append("no wrong clocks: libfaketime is not installed")
        else:
            own_clocks = [WallClock(self.work / f"clock-{n}") for n in range(options.nodes)]
        proxy, environment, calm = None, dict[str, str](), dict[str, str]()
        path, iceberg = str(self.work / "data"), self._iceberg((self.work / "iceberg").as_uri())
        flags = [*FLAGS, "--replica.read.tail", options.tail.value, "--maintain.tables", "false"]
        try:
            program()
        except NotBuilt as error:
            self.notes.append(f"no faults of the store: {error}")
        else:
            if options.store == "s3":
                server = stack.enter_context(running_server(self.work / "s3"))
                host = namespaces.STORE if network is not None else "127.0.0.1"
                proxy = stack.enter_context(
                    running_proxy(server.endpoint, seed=options.seed, host=host)
                )
                calm = server.environment
                environment = calm | {"AWS_ENDPOINT_URL": proxy.endpoint}
                path = f"{server.uri}/cluster"
                flags += ["--store", path]
                iceberg = self._iceberg(f"{server.uri}/iceberg") | {
                    "s3.endpoint": server.endpoint,
                    "s3.access-key-id": server.access_key,
                    "s3.secret-access-key": server.secret_key,
                    "s3.region": server.region,
                }
        opened = dict[str, str]()
        if options.is_encrypted:
            keys = self.work / "keys"
            add_key(keys, "first", rng=random.SystemRandom())
            flags += ["--encryption.key.provider", "file", "--encryption.key.file", str(keys)]
            opened = {
                "LAKEHEAD_ENCRYPTION_KEY_PROVIDER": "file",
                "LAKEHEAD_ENCRYPTION_KEY_FILE": str(keys),
            }
        if options.has_tables:
            load = TableLoad(
                path=path,
                topics=(TOPIC, TRANSACTIONS_TOPIC),
                folder=self.work,
                environment=environment | opened,
                calm=calm | opened,
                iceberg=iceberg,
            )
            self.tables = TableJobs(load, options.seed)
        # On one machine a paused node is ended by who takes over from it. On several it wakes.
        places = [
            Place(
                host=namespaces.address(n) if network is not None else "127.0.0.1",
                port=PORT if network is not None else 0,
                under=network.under(n) if network is not None else (),
                environment={**environment, **(own_clocks[n].environment if own_clocks else {})},
                flags=(
                    *("--broker.rack", options.zones[n]),
                    *(("--host.id", f"machine-{n}") if options.wal == "object" else ()),
                ),
            )
            for n in range(options.nodes)
        ]
        client: Mapping[str, str | int | float] = {}
        if options.security:
            hosts = ("localhost", *sorted({place.host for place in places}))
            self.secure = SecureCluster.make(self.work / "ca", hosts)
            places = [self.secure.place(place) for place in places]
            client = self.secure.user().librdkafka
        cluster = LakeheadCluster(
            self.work, *flags, nodes=options.nodes, wal=options.wal, places=places, client=client
        )
        stack.enter_context(cluster)
        return Targets(cluster=cluster, network=network, proxy=proxy, clocks=own_clocks)


def run(options: Options) -> report.Run:
    """Run, and leave report, history and logs in their folder; with anomalies the store, too."""
    with ExitStack() as stack:
        chaos = ChaosRun(options, stack)
        result = chaos.run()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.txt").write_text(report.text(result))
    (folder / "report.html").write_text(report.page(result))
    for log in chaos.work.glob("node-*.log"):
        shutil.copy(log, folder)
    with gzip.open(folder / "history.pickle.gz", "wb") as file:
        pickle.dump((chaos.history, chaos.share_histories), file)
    if result.anomalies:
        print(f"the cluster's folder is kept: {chaos.work}")
    else:
        shutil.rmtree(chaos.work)
    return result
