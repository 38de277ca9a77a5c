# Two commands do everything on a fresh machine: `make train` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install train test check format bench results clean

help: ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## set up .venv with everything the tests need

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@# torch first and by its exact version: every later requirement is then satisfied by it.
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@# Only for its chat template files, which the tests of the context room read; none of its requirements.
	$(BIN)/pip install --quiet --no-deps -c constraints.txt trl
	@touch $@

train: install ## train the default recipe and show the curve
	$(BIN)/turnwise train frozenlake

test: install ## run all tests that need no extra service
	$(BIN)/pytest --cov=src/turnwise --cov-report=term --durations=8

check: install ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: install ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## run the benchmarks; writes benchmarks/results/*.json
	$(BIN)/python -m benchmarks.run

results: install ## train presets and environments over three seeds; writes docs/results/
	$(BIN)/python -m benchmarks.presets
	$(BIN)/python -m benchmarks.environments

clean: ## remove the environment and all caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
