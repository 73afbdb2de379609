# Penstock's commands. Each works in a fresh clone with python3 (3.11+, with venv) and make: .venv is set up when needed.

VENV ?= .venv
PYTHON ?=
BIN := $(VENV)/bin
# COVERAGE=1 measures the coverage of any test target: make test-unit COVERAGE=1
COVERAGE ?=
PYTEST := $(BIN)/$(if $(COVERAGE),coverage run,python) -m pytest
WORKERS ?= auto
# A session of Spark waits more than it works, and takes a gigabyte. The long tests have names that come first.
SPARK_WORKERS ?= 2
ARGS ?=
SEEDS ?= 1-200
FRAMES ?= 1000000
SEED ?= 1

# What make coverage runs. Simulated clusters and Spark are left out for the time that they take.
COVERAGE_STAGES ?= test-unit test-integration test-conformance test-interop test-crash test-cluster

export VENV PYTHON COVERAGE
# Processes that tests start in other folders write their measurements here too.
export COVERAGE_FILE := $(CURDIR)/build/coverage/data

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The package alone, to run the broker; with its development tools, for everything else.
$(VENV)/.installed: pyproject.toml tools/setup_venv.sh
	@tools/setup_venv.sh
	@touch $@

$(VENV)/.installed-dev: pyproject.toml requirements-dev.txt tools/setup_venv.sh
	@tools/setup_venv.sh dev
	@touch $(VENV)/.installed $@

$(VENV)/.installed-bench: pyproject.toml tools/setup_venv.sh
	@tools/setup_venv.sh bench
	@touch $@

.PHONY: setup
setup: $(VENV)/.installed-dev ## Set up .venv for development.

.PHONY: serve
serve: $(VENV)/.installed ## Run the broker with its defaults (ARGS="--kafka 127.0.0.1:9192" changes them).
	@exec $(BIN)/penstock serve $(ARGS)

.PHONY: demo
demo: $(VENV)/.installed-dev ## Run the demo: a broker, a queue with failures, a Spark pipeline, a chart; about a minute (ARGS=--keep keeps it running until Ctrl-C).
	@exec $(BIN)/python -m examples.demo $(ARGS)

.PHONY: test
test: $(VENV)/.installed-dev ## Run everything, fast checks first, and print a summary.
	@tools/install_test_tools.sh
	@$(BIN)/python tools/run_stages.py format lint spelling types layers test-tidy test-unit test-integration test-conformance test-fuzz test-interop test-crash test-simulation test-cluster test-spark

.PHONY: check
check: $(VENV)/.installed-dev ## Check format, lint, spelling, types, layers, tidy test and unit tests: run this before every commit.
	@$(BIN)/python tools/run_stages.py format lint spelling types layers test-tidy test-unit

.PHONY: format
format: $(VENV)/.installed-dev ## Check the format (make fix corrects it).
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check . ; exit 1; }

.PHONY: fix
fix: $(VENV)/.installed-dev ## Format the code and apply safe fixes.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: lint
lint: $(VENV)/.installed-dev ## Lint with ruff.
	@$(BIN)/ruff check .

.PHONY: spelling
spelling: $(VENV)/.installed-dev ## Check the spelling with codespell.
	@$(BIN)/codespell

.PHONY: types
types: $(VENV)/.installed-dev ## Check the types with mypy --strict.
	@$(BIN)/mypy

.PHONY: layers
layers: $(VENV)/.installed-dev ## Check the imports between layers.
	@$(BIN)/lint-imports --no-logo

.PHONY: test-tidy
test-tidy: $(VENV)/.installed-dev ## Check the source tree itself: sizes, docstrings, links, forbidden imports, plain English.
	@$(PYTEST) -q tests/unit/test_tidy.py tests/unit/test_prose.py

.PHONY: test-unit
test-unit: $(VENV)/.installed-dev ## Run the unit tests.
	@$(PYTEST) -q -n $(WORKERS) --dist worksteal tests/unit --deselect tests/unit/test_tidy.py --deselect tests/unit/test_prose.py $(ARGS)

.PHONY: test-integration
test-integration: $(VENV)/.installed-dev ## Run integration tests: broker, client, command line, README.
	@$(PYTEST) -q -n $(WORKERS) --dist loadfile tests/integration $(ARGS)

.PHONY: test-interop
test-interop: $(VENV)/.installed-dev ## Run third-party clients against the broker (including kcat if it is installed).
	@$(PYTEST) -q -n $(WORKERS) --dist loadfile tests/interop $(ARGS)

.PHONY: test-conformance
test-conformance: $(VENV)/.installed-dev ## Test the guarantees of the four APIs against a running broker, with curl, sockets and gRPC.
	@$(PYTEST) -q -n $(WORKERS) --dist loadfile tests/conformance $(ARGS)

.PHONY: test-fuzz
test-fuzz: $(VENV)/.installed-dev ## Send every door 20,000 messages with mistakes before the login, and a thousand slow clients.
	@$(PYTEST) -q -n $(WORKERS) --dist loadfile tests/fuzz $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.installed-dev ## The same with other messages, and as many as you like (FRAMES=1000000 SEED=7).
	@FRAMES=$(FRAMES) SEED=$(SEED) $(PYTEST) -q -rP tests/fuzz/test_before_login.py $(ARGS)

.PHONY: test-crash
test-crash: $(VENV)/.installed-dev ## Test kills, damaged files, full disks and power loss (CRASH_ROUNDS=100 SIMULATION_SEEDS=2000 for a long run).
	@$(PYTEST) -q -n $(WORKERS) --dist worksteal tests/crash $(ARGS)

.PHONY: test-cluster
test-cluster: $(VENV)/.installed-dev ## Test several nodes on a real etcd: killed, paused and cut off (CLUSTER_ROUNDS=100 for a long run).
	@$(PYTEST) -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/cluster $(ARGS)

.PHONY: test-simulation
test-simulation: $(VENV)/.installed-dev ## Run simulated clusters with 200 seeds, and check that each rule of replication is needed.
	@$(PYTEST) -q -n $(WORKERS) --dist worksteal tests/simulation $(ARGS)

.PHONY: simulate
simulate: $(VENV)/.installed-dev ## Run simulated clusters with other seeds (SEEDS=1-1000 ARGS="--jobs 2", or SEEDS=7 ARGS=-v to print every event).
	@exec $(BIN)/python -m penstock.testing.simulation $(SEEDS) $(ARGS)

.PHONY: test-spark
test-spark: $(VENV)/.installed-dev ## Test the Spark source, sink and pipelines on a real Spark (pip installs Java if there is none).
	@$(PYTEST) -q -n $(SPARK_WORKERS) --dist loadfile --no-loadscope-reorder tests/spark $(ARGS)

.PHONY: coverage
coverage: $(VENV)/.installed-dev ## Run the tests with branch coverage, including their processes; fails below the floor.
	@tools/install_test_tools.sh
	@rm -rf $(dir $(COVERAGE_FILE))
	@COVERAGE=1 $(BIN)/python tools/run_stages.py $(COVERAGE_STAGES)
	@$(MAKE) --no-print-directory coverage-report

.PHONY: coverage-report
coverage-report: $(VENV)/.installed-dev ## Report what test targets with COVERAGE=1 measured; fails below the floor.
	@$(BIN)/python tools/coverage_floor.py

.PHONY: coverage-raise
coverage-raise: $(VENV)/.installed-dev ## Raise the floor in pyproject.toml to the last measurement.
	@$(BIN)/python tools/coverage_floor.py --raise

.PHONY: test-versions
test-versions: ## Run unit and integration tests on each other Python 3.11+ on this machine.
	@tools/test_versions.sh

.PHONY: bench
bench: $(VENV)/.installed-dev $(VENV)/.installed-bench ## Compare the broker with other systems, and write bench/results.
	@$(BIN)/python -m bench $(ARGS)

.PHONY: bench-gateways
bench-gateways: $(VENV)/.installed-dev $(VENV)/.installed-bench ## Compare HTTP, JSON lines, gRPC and queues with Redis.
	@$(BIN)/python -m bench.gateways $(ARGS)

.PHONY: bench-spark
bench-spark: $(VENV)/.installed-dev ## Compare the Spark connector with a source and a sink that do nothing.
	@$(BIN)/python -m bench.spark $(ARGS)

.PHONY: bench-cluster
bench-cluster: $(VENV)/.installed-dev $(VENV)/.installed-bench ## Compare three nodes with one node and with Kafka: rows, idle cost, failover.
	@$(BIN)/python -m bench.cluster $(ARGS)

.PHONY: bench-security
bench-security: $(VENV)/.installed-dev $(VENV)/.installed-bench ## Measure the CPU cost of TLS, access rules and encryption, in Penstock and in Kafka; under five minutes.
	@$(BIN)/python -m bench.security $(ARGS)

.PHONY: lock
lock: ## Bring requirements-dev.txt up to date with pyproject.toml and PyPI (needs uv).
	@UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-annotate --upgrade --quiet --output-file requirements-dev.txt

.PHONY: clean
clean: ## Remove everything that these commands created, except data.
	rm -rf $(VENV) .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
