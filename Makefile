# The two commands of the README are `make serve` and `make test`; `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
MODEL ?= smollm2-135m
HOST ?= 127.0.0.1
PORT ?= 8000
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help serve fleet setup test check format models dashboards clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.serve ## fetch the model and serve it on http://127.0.0.1:8000 (MODEL=, PORT=, ARGS=)
	@exec $(BIN)/argosy serve $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

fleet: $(VENV)/.serve ## two engines and a gateway on this machine, and requests through it (MODEL=, ARGS="--port 4000 --once")
	@exec $(BIN)/python examples/fleet/fleet.py --model $(MODEL) $(ARGS)

test: $(VENV)/.dev models ## set up what is needed and run every test
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile $(ARGS)

check: $(VENV)/.dev ## format, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev ## format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(VENV)/.dev ## make .venv with everything for development

dashboards: $(VENV)/.dev ## write what follows from the gateway's list of metrics: dashboard, alert rules, table of the docs
	$(BIN)/argosy gateway dashboard > deploy/grafana/argosy-gateway.json
	$(BIN)/argosy gateway alert-rules > deploy/prometheus/argosy-gateway-alerts.yaml
	$(BIN)/python docs/metrics_table.py

models: $(VENV)/.dev ## fetch the models the tests use (once; about 350 MB)
	@$(BIN)/argosy models fetch smollm2-135m gemma3-270m

clean: ## remove .venv and every cache inside the tree
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build src/*.egg-info

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "error: no python3 found; install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.11 …" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@echo "making $(VENV) …"
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip --disable-pip-version-check install -qq --upgrade -c constraints.txt pip

$(VENV)/.serve: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing argosy with what it needs to serve (a few minutes the first time) …"
	@$(PIP) -e '.[serve]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing argosy with what it needs for development …"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.serve
