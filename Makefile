# Two commands: `make demo` shows what Outward does, `make test` proves it. Both make .venv first.
PYTHON ?= python3
BIN := .venv/bin
VENV := .venv/.installed
UNHOOKED := -o addopts='--strict-markers --import-mode=importlib'

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all check bench census screenshots

help:
	@echo 'make demo      the main job: a real pretrained model, measured, and a report of it'
	@echo 'make test      the tests, in minutes'
	@echo 'make test-all  the slow ones too: real processes, every architecture'
	@echo 'make check     ruff, mypy, and the levels of the rooms'
	@echo 'make bench     speed and memory, as tables; results go to results/'
	@echo 'make census    every architecture of the libraries; makes docs/models.md again'
	@echo 'make screenshots   the pictures of README again, by Chromium'

# requirements.lock names every package with its exact version, so nothing is resolved here.
$(VENV): requirements.lock pyproject.toml packaging/mend_torchvision.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Outward needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --no-deps -r requirements.lock
	$(BIN)/python packaging/mend_torchvision.py
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Once it is measured, it is shown again in seconds.
demo: $(VENV)
	$(BIN)/outward measure smollm2 --length 256 --samples 24 --batch 4 --baseline random-weights,shuffled-tokens --lengths 64,128 --out demo/smollm2 --resume
	$(BIN)/outward report demo/smollm2 -o demo/report.html
	@echo 'Open demo/report.html in a browser. To click through every head, and to type a text of yours:'
	@echo '    $(BIN)/outward explore demo --model smollm2'

# The second pass is without the type hook, which torch.compile cannot trace.
test: $(VENV)
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest $(UNHOOKED) -m 'unhooked and not slow'

test-slow: $(VENV)
	$(BIN)/python -m pytest $(UNHOOKED) -m slow

test-all: test test-slow

check: $(VENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_levels.py

bench: $(VENV)
	$(BIN)/python -m benchmarks.exclusion --out results/exclusion
	$(BIN)/python -m benchmarks.measure --out results/measure
	$(BIN)/python -m benchmarks.peers --out results/peers
	$(BIN)/python -m benchmarks.seeing --out results/seeing
	$(BIN)/python -m benchmarks.context --out results/context

census: $(VENV)
	$(BIN)/python -m benchmarks.census --out results/census --table docs/models.md

screenshots: demo
	$(BIN)/python docs/screenshots.py --run demo/smollm2 --model smollm2 --report demo/report.html --out docs/images
