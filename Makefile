# Everything a contributor runs. Needs python3 (3.11 or newer) and make; the rest goes into .venv/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# Compiled programs are kept between runs: most of the time of a first run is compilation.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.3

.DEFAULT_GOAL := help
.PHONY: help install run demo test test-slow fuzz faults lint notebooks docs dist bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

install: $(VENV)/.installed ## make .venv/ with the library, editable, and its development tools

run: $(VENV)/.installed-library ## train the implicit GRU beside a bidirectional LSTM: a table, figures, report.html (ARGS="--set training.seed=1 --output runs/other")
	$(BIN)/implicit-rnn train configs/biased_walk.toml --profile quick --resume $(ARGS)

demo: install ## one implicit recurrence with every method, linear solver and adjoint
	$(BIN)/implicit-rnn demo $(ARGS)

test: install lint docs ## lint, build the site, then all tests but the slow ones
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(VENV)/.installed-docs ## only the slow tests, the site in a browser among them
	@$(BIN)/python -m pytest -m slow $(ARGS) || { code=$$?; \
	  if [ $$code -eq 5 ]; then echo "no test is marked slow"; else exit $$code; fi; }

fuzz: install ## 10,000 random solves judged in float64; goes on where it was stopped (ARGS="--seed 1 --out runs/fuzz_1.jsonl")
	$(BIN)/python -m tests.fuzz --cases 10000 --seconds 5400 $(ARGS)

faults: install ## 200 runs that are killed, starved and damaged; then odd configurations, and damaged files for every reader
	$(BIN)/python -m tests.faults --cases 200 --seconds 7200 $(ARGS)
	$(BIN)/python -m tests.faults.settings --cases 2000
	$(BIN)/python -m tests.faults.loaders --cases 500

lint: install ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: install ## execute the notebooks at full size and save what they show
	$(BIN)/python -m tests.notebooks

docs: $(VENV)/.installed-docs ## the site, in build/site/: dead links and undocumented public names fail it
	NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu $(BIN)/python -m mkdocs build --quiet
	@echo "open file://$(CURDIR)/build/site/index.html"

dist: $(VENV)/.installed-release ## source distribution and wheel, in dist/, checked
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

bench: $(VENV)/.installed-bench ## all quick benchmarks beside their peers, and one table of them (ARGS=--table: as recorded)
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove .venv/, caches and build products; results in runs/ stay
	rm -rf $(VENV) .cache .pytest_cache .hypothesis .mypy_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed-library: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.installed-library
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.installed-release: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	@touch $@
