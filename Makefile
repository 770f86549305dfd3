# Everything one does with a checkout. `make` alone prints this list.
# Needs Python 3.11 or newer and Java 17 or newer; the rest goes into .venv.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
SEED ?=
STORE ?=
WAL ?=
DEMO_WAL = $(if $(WAL),--wal $(WAL:object=object:))
# One more than cores: many tests wait for what other processes do.
PYTEST_WORKERS ?= 3
SUITES ?= ../shared/conformance
AIRFLOWS ?= 3.0.6 3.1.8 3.2.2
AIRFLOW ?= $(shell sed -n 's/^apache-airflow==\([0-9.]*\).*/\1/p' requirements/dev.txt)
SPARKS ?= 3.5.6 4.0.1 4.1.0
AIRFLOW_PYTHON = build/airflow-$(AIRFLOW)/bin/python
EQUALITY_PYTHON = $(if $(SPARK),build/spark-$(SPARK)/bin/python,$(BIN)/python)

# Spark asks for local addresses and for a home of Java by itself; PYTHONPATH of the caller must not leak in.
# Without files of bytecode, each of the hundreds of processes that tests start compiles every module again.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE
# The order of sets of texts is the same in each run, so that a seed of a simulated cluster is one world.
export PYTHONHASHSEED ?= 0

.PHONY: help help-all install environment demo airflow airflow-test airflow-versions test short-tests test-long bench bench-quick bench-storage bench-cluster bench-coordination bench-network bench-lake lint format types imports unit property worlds bounds fuzz audit sim stalls producers integration crashes chaos flood trials kills game-day week upkeep-day changes equality clients connect-test registry conformance differential tools reservations disks tf-test tf-provider boot-test tf-lint policy-record roll-test deploy-test aws-day s3-server spark spark-versions examples docs docs-site lock dist clean

# What most days need; the others are judges, long runs and what they need.
FIRST := install|demo|airflow|test|unit|integration|bench|docs|tf-test|clean

help: ## Show this list
	@echo "Lakehead: a Kafka broker over object storage"
	@echo
	@awk -F ':.*## ' '/^($(FIRST)):.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Every target makes the environment ($(VENV)) first when it is missing or out of date. make help-all shows all."

help-all: ## Show every target
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## Make .venv with everything, and the lakehead command in it

# An environment that has all pinned packages already is kept.
$(STAMP): requirements/build.txt requirements/dev.txt pyproject.toml scripts/preflight
	@scripts/preflight
	@if $(BIN)/python scripts/is-installed requirements/build.txt requirements/dev.txt 2>/dev/null; then \
		$(PIP) --no-deps --no-build-isolation -e . && touch $(STAMP); \
	else $(MAKE) --no-print-directory environment; fi

environment:
	@echo "Making $(VENV) (a few minutes the first time) ..."
	@"$$(scripts/preflight --print-python)" -m venv --clear $(VENV)
	@$(PIP) --require-hashes -r requirements/build.txt
	@$(PIP) --require-hashes --no-build-isolation -r requirements/dev.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@$(BIN)/python scripts/compile-kernels
	@$(BIN)/python -c "from lakehead.lake.spark import spark_session; spark_session().stop()"
	@touch $(STAMP)
	@echo "Ready: $(BIN)/lakehead --help"

demo: $(STAMP) ## Broker, real data, a Kafka client, Spark SQL and a Delta table; WAL=object, STORE=s3, STORE=s3://bucket/prefix
ifeq ($(STORE),s3)
	@folder=$$(mktemp -d lakehead-demo-s3-XXXXXX) && $(BIN)/python -m bench.s3_server $$folder/s3 -- \
		$(BIN)/lakehead demo --store s3://lake/demo $(DEMO_WAL) && \
	echo "The bucket lies in $$folder. A shell in which it is served: $(BIN)/python -m bench.s3_server $$folder/s3 -- bash"
else
	@$(BIN)/lakehead demo $(if $(STORE),--store $(STORE)) $(DEMO_WAL)
endif

airflow: $(STAMP) ## Airflow with Lakehead's DAGs beside a demo cluster, until Ctrl-C; FOLDER=, CLUSTER=path of yours, PORT=8080
	@LAKEHEAD_SUPERVISOR=$$PPID exec $(BIN)/lakehead airflow $(FOLDER) --port $(or $(PORT),8080) $(if $(CLUSTER),--path $(CLUSTER))

airflow-test: $(AIRFLOW_PYTHON) ## Tests of the DAGs by a real Airflow (about half an hour), AIRFLOW=3.0.6 by another version; two schedulers where there is PostgreSQL, the web page where there is Chromium
	@SLOW=1 timeout 4500 $(AIRFLOW_PYTHON) -m pytest -q --timeout 900 tests/airflow tests/terraform/test_airflow_instance.py

airflow-versions: $(foreach airflow,$(AIRFLOWS),build/airflow-$(airflow)/bin/python) ## The DAGs parsed and run by the other Airflows that they run on; AIRFLOWS="3.0.6 3.1.8 3.2.2"
	@for airflow in $(AIRFLOWS); do \
		echo "Airflow $$airflow"; \
		SLOW=1 timeout 4500 build/airflow-$$airflow/bin/python -m pytest -q --timeout 900 $(AIRFLOWS_WARNINGS) \
			$(addprefix tests/airflow/test_,dags.py airflow_names.py every_dag.py dag_runs.py) || exit 1; \
	done

# The standard provider imports names of Airflow 3.1 by their old place; OpenTelemetry of Airflow 3.2 reads
# entry points in an old way.
AIRFLOWS_WARNINGS = -W 'ignore:The `airflow.:FutureWarning' -W 'ignore:SelectableGroups dict interface:DeprecationWarning'

# An Airflow with the packages of its time, as its published constraints have them, and with what only
# its tests need, lies before that of .venv; all else is what .venv has.
AIRFLOW_TIME_3.0.6 := 2025-09-15
AIRFLOW_TIME_3.1.8 := 2026-03-20
AIRFLOW_TIME_3.2.2 := 2026-06-20
build/airflow-%/bin/python: | $(STAMP)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/airflow-$*
	@$(BIN)/uv pip install --quiet --python build/airflow-$*/bin/python \
		$(addprefix --exclude-newer ,$(AIRFLOW_TIME_$*)) \
		$(foreach name,common-compat standard,--exclude-newer-package apache-airflow-providers-$(name)=false) \
		apache-airflow==$* apache-airflow-core==$* apache-airflow-task-sdk==1.$(patsubst 3.%,%,$*) \
		"apache-airflow-providers-common-compat>=1.14.1" "apache-airflow-providers-standard>=1.14" \
		apache-airflow-providers-openlineage asyncpg psycopg2-binary
	@echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
		> "$$(build/airflow-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/lakehead.pth"

test: $(STAMP) ## Everything that must pass: lint, types, imports and all tests
	@$(MAKE) --no-print-directory lint imports s3-server
	@$(MAKE) --no-print-directory --jobs 2 types short-tests

# Types are checked beside the tests: with an empty cache they take one core for most of a minute.
# A test that fails is tried once more, as in Kafka's own build: tests/conftest.py has the limit.
short-tests: $(STAMP)
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadgroup --durations=20 --reruns 1 -raR

test-long: $(STAMP) ## All of test, and what takes too long for every run: some two hours
	@for target in test unit property worlds integration spark connect-test examples airflow-test trials stalls producers; do \
		$(MAKE) --no-print-directory $$target || exit 1; \
	done

s3-server: $(STAMP)
	@$(BIN)/python -m bench.s3_server || test -z "$$LAKEHEAD_CI"

bench: $(STAMP) ## Lakehead and Apache Kafka in turn, with Kafka's own tools; LOADS=all or names, KEEP=file to go on with, SECURITY=SASL_SSL, QUICK=1 (docs/benchmarks)
	@$(BIN)/python -m bench

bench-quick: $(STAMP) ## This tree beside the previous commit by short runs in turn; fails if it is slower; BASE=HEAD~1
	@$(BIN)/python -m bench.regression

bench-cluster: $(STAMP) ## Clusters of many nodes: failover (SECURITY=SASL_SSL: secured), moves, idleness, scaling, reads in zones; ONLY=part, QUICK=1 for short runs
	@$(BIN)/python -m bench.cluster

bench-coordination: $(STAMP) ## Heartbeats, rebalances and commits of many groups on one node; ONLY=part, QUICK=1 for short runs
	@$(BIN)/python -m bench.coordination

bench-network: $(STAMP) ## CPU of a GB over TLS, by several transports; QUICK=1 for a short run
	@$(BIN)/python -m bench.network

bench-lake: $(STAMP) ## Spark's reads beside its Kafka source, lakehead.scan, materialise; ONLY=part, QUICK=1 for short runs, TOPIC_GB=10
	@$(BIN)/python -m bench.lake

bench-storage: $(STAMP) ## The storage engine alone, beside fio and the like; ONLY=part, QUICK=1 for short runs
	@$(BIN)/python -m bench.storage

lint: $(STAMP) ## Style (ruff)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "Run 'make format'."; exit 1; }
	@echo "lint: ok"

format: $(STAMP) ## Put the code into the project's format
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

types: $(STAMP) ## Types (mypy, strict)
	@$(BIN)/mypy

imports: $(STAMP) ## Which package may import which
	@$(BIN)/lint-imports --no-logo 2>&1 | tail -n +1

unit: $(STAMP) ## The tests that start no process, the slow ones too
	@SLOW=1 $(BIN)/python -m pytest -q tests/unit

property: $(STAMP) ## Property tests (Hypothesis)
	@SLOW=1 $(BIN)/python -m pytest -q tests/property

worlds: $(STAMP) ## Simulated worlds and models of the protocols, as tests, with all their seeds
	@SLOW=1 $(BIN)/python -m pytest -q tests/simulation tests/model

fuzz: $(STAMP) ## Every reader of bytes (frames, requests, batches, objects, metadata, WAL, SASL, tokens) takes any bytes; SECONDS=600 for each, SEED=1, ONLY="name ..."
	@$(BIN)/python -W ignore -m tests.fuzz --seconds $(if $(filter command line,$(origin SECONDS)),$(SECONDS),600) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY))

audit: $(STAMP) ## Unsafe calls (ruff's S rules, which are bandit's), and known vulnerabilities of pinned packages (pip-audit; status 2 where its database is out of reach)
	@$(BIN)/python -m tests.audit

bounds: $(STAMP) ## Property tests of the decoders, with kernels that check every index
	@folder=$$(mktemp -d) && SLOW=1 NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$$folder $(BIN)/python -m pytest -q --timeout 600 \
		$(addprefix tests/property/test_,value_fuzz.py decode.py avro_values.py protobuf_values.py json_columns_property.py variant_encoding.py); \
	status=$$?; rm -rf $$folder; exit $$status

stalls: $(STAMP) ## The largest requests of every API beside another client, and the table in docs/operations.md; APIS="A or B" VERSIONS=all
	@mkdir -p build && rm -f build/stalls.jsonl
	@SLOW=1 VERSIONS=$(VERSIONS) STALLS_FILE=build/stalls.jsonl timeout 7200 $(BIN)/python -m pytest -q -s -n 0 --timeout 1800 tests/integration/test_stall_watchdog.py $(if $(APIS),-k "$(APIS)")
	@$(if $(APIS)$(VERSIONS),,$(BIN)/python docs/stall_table.py build/stalls.jsonl)

producers: $(STAMP) ## A million producer ids in one partition: what uploads have of them, stalls, a leader killed; PRODUCERS=n
	@SLOW=1 timeout 3600 $(BIN)/python -m pytest -q -s -n 0 --timeout 1800 tests/unit/test_many_producers.py tests/integration/test_many_producer_ids.py

sim: $(STAMP) ## Simulated worlds: SEEDS=n of them (10000), or SEED=n to watch one; WAL=block, object ...; CLUSTERS=1; ENCRYPTED=1
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),10000)) $(if $(WAL),--wal $(WAL)) $(if $(CLUSTERS),--clusters) $(if $(ENCRYPTED),--encrypted)

integration: $(STAMP) ## Tests with real clients and real processes, the slow ones too
	@SLOW=1 $(BIN)/python -m pytest -q tests/integration

crashes: $(STAMP) ## Long runs of the crash, garbage and outage tests; CRASHES=n, CRASH_SEED=n, HOSTILE_SEEDS=n, S3_OUTAGE_S=n, STREAM_KILLS=n, JOB_KILLS=n
	@SLOW=1 CRASHES=$${CRASHES:-300} HOSTILE_SEEDS=$${HOSTILE_SEEDS:-5000} S3_OUTAGE_S=$${S3_OUTAGE_S:-600} STREAM_KILLS=$${STREAM_KILLS:-30} JOB_KILLS=$${JOB_KILLS:-50} \
		$(BIN)/python -m pytest -q --timeout 3600 tests/spark/test_stream_kills.py \
		tests/integration/test_crashes.py tests/integration/test_hostile_clients.py tests/integration/test_s3_outages.py \
		tests/integration/test_request_memory.py tests/integration/test_materialize_crashes.py \
		tests/integration/test_transactions_over_kills.py

chaos: $(STAMP) ## A cluster of processes under faults, judged by the history checker; SECONDS=60, SEED=1, WAL=block or object, SECURITY=SASL_SSL, ENCRYPTED=1, TAIL=wal, TABLES=0
	@$(BIN)/python -m tests.checker --seconds $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60) \
		--seed $(or $(SEED),1) --wal $(or $(WAL),block) --security "$(SECURITY)" $(if $(ENCRYPTED),--encrypted) --tail $(or $(TAIL),leader) $(if $(filter 0,$(TABLES)),--no-tables)

flood: $(STAMP) ## Hostile clients by the thousand beside an honest one: idle, slow, never reading, repeating handshakes; IDLE=5000 SLOW_ONES=1000 DEAF=1000 HANDSHAKES=200, SECONDS=20 of each phase
	@$(BIN)/python -m tests.flood --idle $(or $(IDLE),5000) --slow $(or $(SLOW_ONES),1000) --deaf $(or $(DEAF),1000) \
		--handshakes $(or $(HANDSHAKES),200) --seconds $(if $(filter command line,$(origin SECONDS)),$(SECONDS),20)

kills: $(STAMP) ## Jobs killed at every step, several at once, on a living cluster; COUNT=200 kills, SECONDS=3600 at most, SEED=1
	@$(BIN)/python -m tests.kills --count $(or $(COUNT),200) \
		--seconds $(if $(filter command line,$(origin SECONDS)),$(SECONDS),3600) --seed $(or $(SEED),1)

week: $(STAMP) ## A week of operation in two minutes beside clients that may see no error: rolling update, nodes added and removed, full disk, store gone, new certificates, quotas, a kill, a restore; PAUSE=10
	@$(BIN)/python -m tests.operations_week --pause $(or $(PAUSE),10)

game-day: $(STAMP) ## A cluster under load loses its store, and goes on from a followed backup, or as its standby; by object WAL and by block WAL
	@SLOW=1 $(BIN)/python -m pytest -q -s --timeout 600 tests/integration/test_lost_region.py tests/integration/test_standby.py tests/integration/test_standby_size.py

upkeep-day: $(STAMP) ## A day of the DAGs' schedules in compressed time, tasks killed at random; HOURS=24, MINUTES=12 that it lasts, SEED=1
	@timeout $$(($(or $(MINUTES),12) * 60 + 1500)) $(BIN)/python -m tests.upkeep_day --hours $(or $(HOURS),24) --minutes $(or $(MINUTES),12) --seed $(or $(SEED),1)

changes: $(STAMP) ## Row changes of a living PostgreSQL become Delta tables while every part is killed; ROWS=1000000, SEED=1 (apt: postgresql, wal2json)
	@$(BIN)/python -m tests.changes --rows $(or $(ROWS),1000000) --seed $(or $(SEED),1)

trials: $(STAMP) ## Short runs of chaos, of the flood, of a week of operation, of changes (apt: postgresql, wal2json) and of aws-day on an emulator, as tests
	@SLOW=1 $(BIN)/python -m pytest -q --timeout 1800 tests/checker tests/flood tests/changes tests/operations_week tests/aws_day

equality: $(STAMP) $(if $(SPARK),$(EQUALITY_PYTHON)) ## Spark's Kafka source on Apache Kafka, our source, lakehead.scan and tables give the same rows; SEEDS=2, RECORDS=1200, or at size: GB=1; SPARK=4.1.1 by another Spark
	@$(EQUALITY_PYTHON) -m tests.equality $(if $(GB),--gb $(GB),--seeds $(or $(SEEDS),2) --records $(or $(RECORDS),1200))

clients: $(STAMP) ## Every pair of confluent-kafka, kafka-python, aiokafka, kafkajs, franz-go, Java and kcat in every codec; each by TLS and SASL, with right and wrong credentials and certificates; Spark's Kafka source and sink; an application of Kafka Streams (npm, Go, JDK 17: cached; apt: kcat)
	@CLIENTS=1 $(BIN)/python -m pytest -q tests/clients

conformance: $(STAMP) ## Foreign client suites against a broker, beside Kafka's results; SUITES=their folder, ONLY="suite ..." (needs Go, npm, JDK 17)
	@$(BIN)/python -m tests.conformance --suites $(SUITES) $(ONLY)

differential: $(STAMP) ## The same requests to Apache Kafka and to a node, answers compared; SEEDS="1 2", REQUESTS=1000, GROUPS=20 of each
	@set -e; for seed in $(or $(SEEDS),1); do \
		for about in all limits lifetimes; do \
			$(BIN)/python -m tests.differential.requests --seed $$seed --requests $(or $(REQUESTS),1000) --about $$about; \
		done; \
		$(BIN)/python -m tests.differential --seed $$seed --groups $(or $(GROUPS),20); \
		$(BIN)/python -m tests.differential.consumer_groups --seed $$seed --groups $(or $(GROUPS),20); \
		$(BIN)/python -m tests.differential.share_groups --seed $$seed --requests $(or $(REQUESTS),1000); \
		$(BIN)/python -m tests.differential.access --seed $$seed --requests $(or $(REQUESTS),1000); \
	done

tools: $(STAMP) ## Kafka's command-line tools on Apache Kafka and on a node, what they say compared; writes docs/kafka-tools.md (needs JDK 17)
	@$(BIN)/python -m tests.tools

reservations: $(STAMP) ## Fencing on devices with real reservations, SCSI and NVMe, on machines of QEMU (apt: QEMU, two kernels)
	@$(BIN)/python -m tests.reservations.rig

disks: $(STAMP) ## The block WAL on disks that lie: FUSE file systems that lose, tear and refuse (apt: libfuse2)
	@$(BIN)/python -m pytest -q tests/disks

connect-test: $(STAMP) ## Connectors killed at random, brokers too; Kafka Connect's own worker on a broker (needs Java 17; Maven: cached); CONNECT_KILLS=12, CONNECT_SEED=1
	@SLOW=1 $(BIN)/python -m pytest -q --timeout 900 tests/connectors tests/airflow/test_airflow_connect.py

registry: $(STAMP) ## 2,100 generated and damaged schemas of each kind, judged by the Java libraries of Confluent's registry and by ours; SEED=1, CASES=700 (needs Java 17; Maven: cached)
	@$(BIN)/python -m tests.registry --seed $(or $(SEED),1) --cases $(or $(CASES),700)

spark: $(STAMP) ## Tests with Spark, the slow ones too
	@SLOW=1 $(BIN)/python -m pytest -q tests/spark

spark-versions: $(foreach spark,$(SPARKS),build/spark-$(spark)/bin/python) ## Tests of the source by the other Sparks that it runs on; SPARKS="3.5.6 4.0.1 4.1.0"
	@for spark in $(SPARKS); do \
		echo "Spark $$spark"; \
		build/spark-$$spark/bin/python -m pytest -q --timeout 900 $(SPARKS_WARNINGS) \
			tests/spark/test_source.py tests/spark/test_streams.py tests/spark/test_frames.py \
			tests/spark/test_tables_of_sparks_catalog.py || exit 1; \
	done

# Sparks before 4.2 leave sockets to the garbage collector, and Spark 3.5 uses what Python gives up.
SPARKS_WARNINGS = -W ignore::pytest.PytestUnraisableExceptionWarning -W ignore::ResourceWarning -W ignore::DeprecationWarning

# A Spark lies before that of .venv; all else is what .venv has.
build/spark-%/bin/python: | $(STAMP)
	@$(BIN)/python -m venv --clear build/spark-$*
	@build/spark-$*/bin/python -m pip install --quiet --disable-pip-version-check setuptools wheel
	@build/spark-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation pyspark==$*
	@echo "import site; site.addsitedir('$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")')" \
		> "$$(build/spark-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/lakehead.pth"

examples: $(STAMP) ## The programs of examples/, those with Spark too
	@SLOW=1 $(BIN)/python -m pytest -q tests/examples

tf-test: $(STAMP) ## Terraform: format, validity and mocked tests of infra/terraform, then tf-cycle; without AWS (needs terraform and LAKEHEAD_TF_MIRROR)
	@timeout 14400 $(BIN)/python -m tests.terraform
	@$(MAKE) --no-print-directory tf-cycle

tf-provider: $(STAMP) ## Terraform: build the AWS provider 6 from its source, for tf-test where Terraform's registry is out of reach (needs go; about half an hour, 10 GB)
	@$(BIN)/python -m tests.terraform.provider_build

boot-test: $(STAMP) ## Terraform's user data boots in a QEMU guest, or with CONTAINER=1 in containers (root; apt: debootstrap, qemu-system-x86, systemd-container)
	@timeout 7200 $(BIN)/python -m tests.boot $(if $(CONTAINER),container)

tf-cycle: $(STAMP) ## Terraform: every example applied to an emulated AWS, looked at by boto3, changed, destroyed (moto: cached)
	@SLOW=1 timeout 14400 $(BIN)/python -m pytest -q -n 3 tests/terraform/test_terraform_emulator.py tests/terraform/test_terraform_cycle.py tests/terraform/test_terraform_cycle_airflow.py tests/terraform/test_terraform_elastic.py tests/terraform/test_terraform_private_link.py tests/terraform/test_rolling_steps.py tests/terraform/test_terraform_keys.py tests/terraform/test_deploy_page.py tests/terraform/test_secured_host.py tests/terraform/test_security_rules.py

roll-test: $(STAMP) ## Hosts made by a real Terraform are replaced, added and removed one after the other under load (needs terraform; some ten minutes)
	@SLOW=1 timeout 3000 $(BIN)/python -m pytest -q -s --timeout 900 tests/rolling

aws-day: $(STAMP) ## Trials in an AWS account of yours, which pays: ACCOUNT=id BUDGET=dollars; DRY_RUN=1 on an emulator; CLEAN=run removes what is left (docs/aws-day.md)
	@ACCOUNT=$(ACCOUNT) BUDGET=$(BUDGET) DRY_RUN=$(DRY_RUN) CLEAN=$(CLEAN) RUN=$(RUN) ONLY="$(ONLY)" HOURS=$(HOURS) ZONE=$(ZONE) PACKAGES=$(PACKAGES) FOLDER=$(FOLDER) \
		$(BIN)/python -m tests.aws_day

policy-record: $(STAMP) ## What brokers, Spark and Airflow ask of S3, compared with what policies are tested with; WRITE=1 keeps it, WHO=broker (needs Go; Spark: the jars of s3a)
	@timeout 3000 $(BIN)/python -m tests.terraform.recording $(WHO) $(if $(WRITE),--write)

deploy-test: $(STAMP) ## The Helm chart rendered and held against the API's schemas, alerts fired, the Dockerfile linted (needs Go; Helm and promtool are built once, some twenty minutes)
	@SLOW=1 timeout 7200 $(BIN)/python -m pytest -q tests/deployment

tf-lint: $(STAMP) ## Terraform: checkov over infra/terraform (an environment of its own, made once), tflint, terraform-docs and promtool where they are
	@timeout 7200 $(BIN)/python -m tests.terraform.static_analysis

docs: $(STAMP) ## Write the pages that are made from code (settings, metrics, command line)
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/terraform_tables.py

docs-site: $(STAMP) ## The documentation as a site in build/site, with search and llms.txt (mkdocs-material: cached); any warning fails; VERSION=0.1 commits it beside other versions to the branch docs-site
	@$(BIN)/python -m docs.site_build $(VERSION)
	@SLOW=1 timeout 1200 $(BIN)/python -m pytest -q tests/unit/test_docs_site.py

lock: $(STAMP) ## Resolve requirements/*.txt anew from pyproject.toml
	@UV=$(BIN)/uv scripts/lock

# The same commit gives the same bytes (hatchling takes times from SOURCE_DATE_EPOCH).
dist: $(STAMP) ## Wheels of lakehead and lakehead-spark, reproducible, and the bill of materials (CycloneDX), in dist/
	@rm -rf dist && mkdir dist
	@export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 1577836800) && for folder in . distributions/lakehead-spark; do \
		(cd $$folder && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist >/dev/null) || exit 1; \
	done
	@$(BIN)/python scripts/sbom lakehead $$($(BIN)/python -c "from lakehead.installation import VERSION; print(VERSION)") requirements/base.txt > dist/lakehead.cdx.json
	@cd dist && sha256sum *.whl *.json | tee SHA256SUMS

clean: ## Remove the environment, caches and what the demo left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis lakehead-demo* lakehead-airflow* chaos-* spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
