# Two commands: `make demo` shows what Outward does, `make test` proves it. Both make .venv first.
PYTHON ?= python3
BIN := .venv/bin
VENV := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check bench

help:
	@echo 'make demo      the main job, on a small example'
	@echo 'make test      the tests, in minutes'
	@echo 'make test-all  the slow ones too'
	@echo 'make check     ruff, mypy, and the levels of the rooms'
	@echo 'make bench     speed and memory, as tables; results go to results/'

# requirements.lock names every package with its exact version, so nothing is resolved here.
$(VENV): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Outward needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: $(VENV)
	$(BIN)/python examples/forms.py

# The second pass is without the type hook, which torch.compile cannot trace.
test: $(VENV)
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest -o addopts='--strict-markers --import-mode=importlib' -m 'unhooked and not slow'

test-all: $(VENV)
	$(BIN)/python -m pytest -m 'not unhooked'
	$(BIN)/python -m pytest -o addopts='--strict-markers --import-mode=importlib' -m unhooked

check: $(VENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_levels.py

bench: $(VENV)
	$(BIN)/python -m benchmarks.exclusion --out results/exclusion
