# The front doors. `make` alone lists them.
#
# Everything is installed from package registries into .venv, at the versions of constraints.txt. Only Spark needs Java.

PYTHON ?= python3
BIN := .venv/bin

# Extra words for the tools: `make test ARGS="-k late -x"`, `make bench ARGS=--quick`, `make fuzz MINUTES=10`.
ARGS ?=
MINUTES ?= 5
# How many kills `make fuzz` survives, and `make test-kafka` and `make test-spark`, unless KILLS says something else.
POINTS ?= 1000
KAFKA_KILLS := $(or $(KILLS),100)
SPARK_KILLS := $(or $(KILLS),30)

# Hundreds of processes import the package in the tests, and would compile it anew each time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-kafka test-spark lint types contracts bench bench-peers fuzz loadtest clean java chromium

help:  ## show this list
	@echo "Latecomer: pattern queries over streams whose events arrive late"
	@echo
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

demo: .venv/.demo java  ## run two queries over a year of real flights, at several levels, through Spark
	@$(BIN)/latecomer demo $(ARGS)

test: .venv/.test java chromium lint types contracts  ## check style, types and layers, then run all tests
	@$(BIN)/python -m pytest --numprocesses 3 --dist loadfile $(ARGS)

test-kafka: .venv/.test java  ## the tests on a real Kafka broker, with KILLS (default 100) kills instead of ten
	@LATECOMER_KAFKA_KILLS=$(KAFKA_KILLS) $(BIN)/python -m pytest tests/test_kafka_*.py $(ARGS)

test-spark: .venv/.test java  ## the tests on a real Spark; then KILLS (default 30) drivers are killed
	@$(BIN)/python -m pytest tests/test_spark*.py $(ARGS)
	@$(BIN)/python -m tests.spark_kills --kills $(SPARK_KILLS)

lint: .venv/.test  ## check style and layout (ruff)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/.test  ## check the types (mypy --strict)
	@$(BIN)/mypy --strict latecomer

contracts: .venv/.test  ## check which folder may import which (import-linter)
	@$(BIN)/lint-imports --no-cache

bench: .venv/.test  ## measure the engine, and write docs/performance.md; one part: `make bench-speed-W2`
	@$(BIN)/python -m benchmarks $(ARGS)

bench-%: .venv/.test
	@$(BIN)/python -m benchmarks $* $(ARGS)

bench-peers: .venv/.test java  ## the same beside Flink CEP, Esper, DuckDB, Polars and plain Python (needs a JDK)
	@$(BIN)/python -m benchmarks peers $(ARGS)

fuzz: .venv/.test  ## compare the engine with brute force for MINUTES (default 5), then kill it at POINTS (1000)
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(ARGS)
	@$(BIN)/python -m tests.crashes --points $(POINTS)

loadtest: .venv/.test java  ## rehearse delay and disorder on a Kafka pipeline: a broker, the pipeline, sources, a verdict
	@$(BIN)/python -m loadtest $(ARGS)

clean:  ## remove everything that was built or measured here
	rm -rf .venv .cache artifacts demo-results build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@scripts/java.sh

chromium:
	@scripts/chromium.sh

.venv/.python:
	@scripts/venv.sh "$(PYTHON)"

# What the compiled kernels are made of: an install builds them.
KERNELS := hatch_build.py $(wildcard latecomer/storage/native/*)

.venv/.demo: .venv/.python pyproject.toml constraints.txt $(KERNELS)
	@scripts/install.sh demo

.venv/.test: .venv/.python pyproject.toml constraints.txt $(KERNELS)
	@scripts/install.sh test
