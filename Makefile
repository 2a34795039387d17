# Every target that needs Python makes its own environment in .venv, once: the stamp files are
# older than pyproject.toml or constraints.txt exactly when something has to be installed again.

PYTHON ?= python3
VENV ?= .venv
# Test processes; each one uses a single torch thread (tests/conftest.py). Work stealing keeps the
# tests of a file together, so that its fixtures are rarely set up twice.
WORKERS ?= 2
# Benchmarks to run, by name; all when empty.
NAMES ?=

BIN := $(VENV)/bin
# Modules are compiled when they are imported, once for all processes: most of them never are.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile \
  --constraint constraints.txt
DECLARED := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test browser-test accuracy fuzz lint minimal bench reproduce reproduce-quick results docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-base ## train on embedded data and write dubito-demo/report.html
	$(BIN)/python examples/demo.py

test: $(VENV)/.stamp-dev ## run the tests, the doctests and the examples of the documents
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

browser-test: $(VENV)/.stamp-browser ## use the page of dubito serve in the system's Chromium
	$(BIN)/python -m pytest -m browser tests/browser

accuracy: $(VENV)/.stamp-dev ## run the dense accuracy sweeps (minutes)
	$(BIN)/python -m pytest -s -m accuracy_full

fuzz: $(VENV)/.stamp-dev ## damage 500 models and files of each kind, new ones each time (minutes)
	DUBITO_FUZZ=500 $(BIN)/python -m pytest -n $(WORKERS) tests/model/test_folder.py tests/serve/test_schema.py

lint: $(VENV)/.stamp-dev ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

minimal: ## prove in a fresh environment that the losses need four packages only
	rm -rf build/minimal
	$(PYTHON) -m venv build/minimal
	build/minimal/bin/python -m pip --disable-pip-version-check install --quiet \
	  --constraint constraints.txt torch numpy safetensors pydantic
	build/minimal/bin/python -m pip --disable-pip-version-check install --quiet --no-deps .
	cd build && minimal/bin/python -W error ../tests/minimal.py

bench: $(VENV)/.stamp-dev ## run the benchmarks (NAMES="a b" for some of them)
	$(BIN)/python -m benchmarks $(NAMES)

reproduce: $(VENV)/.stamp-dev ## run what is missing of the paper's experiments (NAMES="table ...")
	$(BIN)/python -m reproduction $(NAMES)

reproduce-quick: $(VENV)/.stamp-dev ## run the whole reproduction on embedded data (a minute)
	$(BIN)/python -m reproduction --quick --jobs 2

results: $(VENV)/.stamp-dev ## update the tables and figures of the documentation
	$(BIN)/python -m reproduction --pages

docs: $(VENV)/.stamp-docs ## build the documentation into site/
	$(BIN)/mkdocs build --strict --site-dir site

clean: ## remove what the targets made, the environment included
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site dubito-demo
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# pip is the last thing venv installs, so an interrupted start is seen and repaired.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  seen=$$($(PYTHON) --version 2>&1) || seen="not found"; \
	  echo "dubito needs Python 3.11 or newer, but $(PYTHON) is $$seen." \
	    "Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-base: $(DECLARED) | $(BIN)/pip
	$(PIP) --editable '.[cli,sklearn]'
	@touch $@

# The base set is part of the two others, so their stamps renew its stamp too. Tests interpret the GPU
# kernels with the Triton that torch's CUDA builds bring, or else with the one they were written for.
$(VENV)/.stamp-dev: $(DECLARED) | $(BIN)/pip
	$(PIP) --editable '.[dev]'
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) 'triton==3.6.0; platform_system == "Linux"'
	@touch $(VENV)/.stamp-base $@

$(VENV)/.stamp-docs: $(DECLARED) | $(BIN)/pip
	$(PIP) --editable '.[docs]'
	@touch $(VENV)/.stamp-base $@

# Playwright drives a Chromium that is there already (Debian: apt install chromium), and brings none.
$(VENV)/.stamp-browser: $(VENV)/.stamp-dev
	$(PIP) --editable '.[dev,browser]'
	@touch $@
