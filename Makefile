# make run: the default run.  make test: everything that must hold.  The environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup run test check bench reproduce clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY)
	@$(BIN)/gossamer run fedavg

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: check
	@$(BIN)/pytest -n 2

bench: $(READY)
	@$(BIN)/python bench/one_by_one.py

WHAT ?= two-populations
reproduce: $(READY)
	@$(BIN)/python reproduce/$(subst -,_,$(WHAT)).py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
