# make run: the default run.  make test: everything that must hold.  The environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup run test check deploy-test cluster-test slow-test gpu-test fuzz docs bench reproduce clean

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
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/deptry src

test: check
	@$(BIN)/pytest -n 2 --dist loadfile

# Real Flower processes that are killed, come back and send damaged messages; some minutes
deploy-test: $(READY)
	@$(BIN)/pytest -m network

# Real Ray nodes that join, and that are killed in the middle of a round; some minutes
cluster-test: $(READY)
	@$(BIN)/pytest -m cluster

# What takes longer: every command on every page as it is written there, and large networks compiled; some minutes
slow-test: $(READY)
	@$(BIN)/pytest -m slow -n 2 --dist loadfile

# Every method on a GPU against the CPU; needs torch, NumPy and safetensors alone
gpu-test:
	@$(PYTHON) tests/check_gpu.py $(GPU)

# Random damage: a minute of each campaign, or all of it with FUZZ=--full; --seed N repeats one. See docs/reliability.md
CAMPAIGNS ?= folders kills messages data_files secure
fuzz: $(READY)
	@for name in $(CAMPAIGNS); do PYTHONPATH=tests $(BIN)/python tests/fuzz/$$name.py $(FUZZ) || exit 1; done

# The site, in site/; nothing on it is loaded from another server
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# BENCH="--full --docs --data-dir DIR ..." for the whole comparison, BENCH="board --pfl FOLDER ..." for published
# workloads on a GPU: see docs/speed.md
bench: $(READY)
	@$(BIN)/python bench/$(if $(filter board,$(BENCH)),board,speed)/run.py $(filter-out board,$(BENCH))

# WHAT=fashion needs Fashion-MNIST: REPRODUCE="--data-dir DIR"
WHAT ?= two-populations
reproduce: $(READY)
	@$(BIN)/python -m reproduce $(WHAT) $(REPRODUCE)

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
