# Everything works on a fresh machine with Python 3.11, pip, gcc and git: the first target makes .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help

help:  ## list what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(STAMP)  ## make .venv with the fedasmu command in it

$(STAMP): pyproject.toml constraints.txt $(wildcard setup.py fedasmu/engines/native/*.cpp fedasmu/engines/native/*.h)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: install  ## run the quickstart: asynchronous training on an unequal fleet, in seconds
	$(BIN)/fedasmu run recipes/quickstart.toml --overwrite

rehearse: install  ## server and five device processes on this machine, over TLS with keys
	$(BIN)/fedasmu rehearse recipes/quickstart.toml --devices 5 --uploads 20 --overwrite

test: install  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

check: install format-check lint types test  ## the gate: format, lint, strict types, tests

format: install  ## format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .

format-check: install
	$(BIN)/ruff format --check .

lint: install
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

bench: install  ## measure the simulator and the native engine against the bare training loop
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/engine.py

attacks: install  ## kills, flipped bits, hostile inputs, limits, two at once: a line a case, some 20 minutes
	for attack in kill bits inputs system together; do $(BIN)/python attacks/$$attack.py || exit 1; done
	$(BIN)/python -m pytest tests/algorithms/test_hostile.py

api: install  ## write docs/reference/api.md from the code
	$(BIN)/python docs/make_api.py

docs: install  ## build the documentation site in build/site
	$(BIN)/python -m sphinx -b html -q -W --keep-going docs build/site
	@echo "open build/site/index.html"

tables: install  ## write the tables of settings on the methods' pages anew
	$(BIN)/python docs/method_tables.py

cells: install  ## put runs of the paper's tables into docs/results: make cells RUNS=runs/tables CELLS=lenet-cifar-10
	$(BIN)/python docs/make_cells.py $(RUNS) $(CELLS)

coverage: install  ## run the tests and say which share of the lines they reach
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pytest-cov
	$(BIN)/python -m pytest -n 2 --dist loadgroup --cov --cov-report=term:skip-covered $(ARGS)

clean:  ## remove .venv and what tools leave behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache

.PHONY: help install run rehearse test check format format-check lint types bench attacks api docs tables cells coverage clean
