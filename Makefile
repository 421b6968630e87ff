# Four commands; each makes the virtual environment first when it is missing or older than the lock.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: up test check bench fault
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make up     the whole product on this machine, with a demo agent; prints an address for the browser"
	@echo "            (ports in use? make up ARGS='--http 127.0.0.1:9000 --nats-port 0')"
	@echo "make test   everything that must hold: checks, all suites, real broker, real browser"
	@echo "make check  format, lint, types, layers, unit and contract tests"
	@echo "make bench  measures, as ratios against the raw client"

up: $(VENV)/ready
	@exec $(BIN)/runlane up --demo $(ARGS)

test: $(VENV)/ready
	@.ci/packages
	@$(BIN)/poe --quiet test

check: $(VENV)/ready
	@$(BIN)/poe --quiet check

bench: $(VENV)/ready
	@$(BIN)/poe --quiet bench

$(VENV)/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Runlane needs Python 3.11 or newer")'
	@echo "making $(VENV) from requirements.lock (about a minute, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
