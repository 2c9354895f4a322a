# One word per job; every one of them sets up what it needs on a fresh machine.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-run run test test-fast lint format docs bench jar soak lock clean distclean

PY := .venv/bin/python
CONFIG ?= routes.yaml
TESTS ?= tests
FAST ?= tests/unit tests/conformance tests/protocols tests/properties
ARGS ?=
# two more than cores: much of a test's time is waiting, for a process that starts or a broker that finds out who died
CORES := $(shell nproc)
WORKERS ?= $(shell echo $$(($(CORES) + 2)))
# the tests start processes by the hundred, and without byte code half of each start is compiling
unexport PYTHONDONTWRITEBYTECODE
# tests that share something heavy share a worker, and tests/conftest.py knows what is to begin
SHARED := --dist loadgroup --no-loadscope-reorder

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup:  ## make .venv and install everything that is locked (development, tests, pipeline)
	@deploy/setup.sh dev
	@deploy/jars.sh kafka connect s3 spark-kafka

setup-run:
	@deploy/setup.sh requirements

run: setup-run  ## serve CONFIG (routes.yaml)
	@exec $(PY) -m gateway serve --config $(CONFIG) $(ARGS)

test: setup  ## run the tests (TESTS=path ARGS='-k name', WORKERS=0 for none beside the one that you see)
	$(PY) -m pytest -n $(WORKERS) $(SHARED) -m "not soak" --durations=25 --durations-min=2 $(TESTS) $(ARGS)

# what needs neither processes nor Spark, Kafka or a browser
test-fast: setup  ## run the quick tests, for while you work (ARGS='-k name')
	$(PY) -m pytest -q -n $(CORES) $(SHARED) -m "not (soak or spark or kafka or browser or processes)" \
	  --durations=10 --durations-min=2 $(FAST) $(ARGS)

lint: setup  ## ruff, formatting, types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: setup  ## format the code and apply the safe fixes
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

docs: setup  ## write the parts of the documentation that follow from the code
	$(PY) -m tests.unit.docs.generate

jar:  ## build the data source for Spark's JVM (needs a JDK 17)
	$(PY) deploy/jar.py

bench: setup  ## print throughput, latency and memory, each beside a bare loop (ARGS='rustlog')
	$(PY) -m tests.bench $(ARGS)

soak: setup  ## long loads: memory stays flat, nothing is lost
	$(PY) -m pytest -m soak $(TESTS) $(ARGS)

lock:  ## resolve pyproject.toml into deploy/locks
	deploy/lock.sh

clean:  ## remove caches and build products
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -path ./.venv -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean  ## also remove .venv and downloaded tools
	rm -rf .venv .deps
