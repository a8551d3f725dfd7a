# What a person runs. Every target does its own set-up; nothing has to be installed by hand but Python 3.11+ and, for Spark and
# the tests against Apache Kafka, Java 17+.

PYTHON ?= python3
# The PySpark that is tested. With another one (make test-spark PYSPARK=4.3) every target has an environment of its own.
PYSPARK_DEFAULT := 4.2
PYSPARK ?= $(PYSPARK_DEFAULT)
VENV := .venv$(addprefix -pyspark-,$(filter-out $(PYSPARK_DEFAULT),$(PYSPARK)))
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/pip --quiet --disable-pip-version-check
PACKAGES := --editable '.[dev]' 'pyspark==$(PYSPARK).*'

# The tests start hundreds of Python processes. Where this is set, each of them compiles again what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-broker compiled-tests test test-spark check repeat-tests alerts-check bench-watching format soak faults clients verify bench bench-spark bench-pipelines bench-landing clean help

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; $$($(PYTHON) --version) was found. Choose another with: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); } || { \
		echo "The module venv of $(PYTHON) is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing onceflow and what its tests need into $(VENV)"
	@$(install_with_uv) || $(PIP) install --no-compile $(PACKAGES)
	@touch $@

# Where nothing is cached, uv needs a third of pip's CPU time. It does not read pip's settings: who has told pip of another
# index gets what pip finds there, as does everybody for whom uv fails. Neither compiles what is never imported.
install_with_uv = ! $(BIN)/pip config list | grep -q index-url && $(PIP) install uv && \
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(PACKAGES)

setup: $(INSTALLED)  ## create .venv with the package and everything the tests need, Apache Kafka's jars, PostgreSQL and a browser included
	@$(BIN)/python -m tests.support.kafka_jars
	@$(BIN)/python -m tests.support.postgresql_binaries
	@$(BIN)/python -m tests.support.browser

demo: $(INSTALLED)  ## orders on Spark, while everything is killed: and the output is exactly what it should be
	@$(BIN)/onceflow demo orders

demo-broker: $(INSTALLED)  ## lost acknowledgements, cut connections, kill -9: and every message is stored once
	@$(BIN)/python demo/exactly_once_writes.py

check: $(INSTALLED)  ## types, lint, layout, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# pytest compiles each file of the tests in its own way. Done once, before five processes would all do the same.
compiled-tests: $(INSTALLED)
	@$(BIN)/pytest -qq --collect-only > /dev/null || $(BIN)/pytest -qq --collect-only

test:  ## everything above, then the tests, against our broker and, as far as the protocol goes, against Apache Kafka
	@$(MAKE) --no-print-directory --jobs 2 setup compiled-tests check
	$(BIN)/pytest -q --numprocesses 5 --dist loadscope

test-spark: setup  ## the tests of all that stands on Spark, with the PySpark you name: make test-spark PYSPARK=4.3
	$(BIN)/pytest -q --numprocesses 2 --dist loadscope tests/spark tests/pipelines tests/sinks tests/docs tests/monitor/test_spark_jobs.py \
		tests/unit/spark tests/unit/pipelines tests/unit/sinks

repeat-tests: setup  ## the same tests several times, counted by test: make repeat-tests ARGS="--times 20 --busy 2 tests/broker"
	$(BIN)/python tools/repeat_tests.py $(ARGS)

alerts-check: $(INSTALLED)  ## Prometheus' own opinion of the alert rules (needs promtool on the PATH)
	promtool check rules --lint=all --lint-fatal monitoring/onceflow-alerts.yml
	promtool test rules monitoring/onceflow-alerts.test.yml

format: $(INSTALLED)  ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: setup  ## the property, crash and fuzz tests with many more examples (some hours)
	ONCEFLOW_SOAK=1 $(BIN)/pytest -q tests/unit tests/broker tests/hostile --timeout 3600

faults: setup  ## all tests on both brokers that need Spark, a JVM or a browser: what make test leaves out, too (three quarters of an hour or so)
	@$(BIN)/python -m tests.support.spark_jvm
	ONCEFLOW_SOAK=1 $(BIN)/pytest -q tests/spark tests/sinks tests/verify tests/pipelines tests/docs tests/conformance tests/secured tests/doctor tests/monitor \
		tests/broker/test_acls.py tests/broker/test_security_clients.py --numprocesses 2 --dist loadscope

clients: setup  ## every client of docs/clients.md in every version, installed and tried; it needs Go and Node, too (ten minutes): make clients ARGS=aiokafka
	$(BIN)/python -m tests.conformance.clients_table $(ARGS)

verify: setup  ## the long proof: 1,300 faults on our broker and on Apache Kafka, 100,000 simulated runs, six pipeline runs (three hours)
	@$(BIN)/python -m tests.verify.long_run

bench: setup  ## our broker beside Apache Kafka in one run (45 minutes): table, plot, JSON in benchmarks/results
	$(BIN)/python -m benchmarks.broker

bench-spark: setup  ## Spark jobs, ours beside Spark's own Kafka source and sink (an hour): benchmarks/results/spark
	$(BIN)/python -m benchmarks.spark --side-by-side --triggers

bench-pipelines: setup  ## orders, viewing, pricing: rate at full load, latency at 1,000 records/s (25 minutes)
	$(BIN)/python -m benchmarks.pipelines

bench-landing: setup  ## rows into PostgreSQL: SqlSink beside Spark's JDBC writer and a bare COPY (five minutes): benchmarks/results/landing
	$(BIN)/python -m benchmarks.landing

bench-watching: setup  ## what counting and the page cost the broker (five minutes)
	$(BIN)/python -m benchmarks.watching --bytes 1024
	$(BIN)/python -m benchmarks.watching --bytes 16384

clean:  ## remove what the targets above made
	rm -rf .venv .venv-pyspark-* .cache build dist onceflow-verify onceflow-demo
