# headscope: `make demo` to see it, `make test` to check it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input
OUT := out/tiny

FUZZ := 2000

# Compiled modules are kept, whatever the environment says: tests start many interpreters, and each would compile again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo fmt lint type quick test fuzz bench docs mutate clean

help:
	@echo "make demo    install and write a report on the embedded model"
	@echo "make test    install the development tools; format, lint, types, tests"
	@echo "make quick   lint, types and the quick tests of laws, contracts and architecture"
	@echo "make fuzz    $(FUZZ) new damaged inputs for every parser; FUZZ=… says how many"
	@echo "make setup   install the development tools only"
	@echo "make fmt     format and fix what can be fixed"
	@echo "make lint    ruff: format and rules"
	@echo "make type    mypy, strict"
	@echo "make bench   speed and memory against peers, as ratios"
	@echo "make docs    regenerate the pages of docs/ that are written from the code"
	@echo "make mutate  change operators of the code one by one and see whether the tests notice (WHERE=maths COUNT=40 SEED=0)"
	@echo "make clean   remove the environment, caches and reports"

# A stamp per extra: pip runs again only when pyproject.toml changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "headscope needs Python 3.11 or newer; say which: make PYTHON=python3.12 …"; exit 2; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo "installing headscope into $(VENV) (torch is large: a few minutes the first time)"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing headscope and its development tools into $(VENV) (a few minutes the first time)"
	@$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/installed

setup: $(VENV)/installed-dev

demo: $(VENV)/installed
	@$(BIN)/headscope report tiny --out $(OUT)

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: setup
	$(BIN)/mypy

# Laws of the mathematics, contracts without models, and the architecture: nothing that runs a checkpoint.
QUICK := tests/architecture/test_imports.py tests/architecture/test_members.py tests/architecture/test_public_api.py \
	tests/architecture/test_project_files.py tests/core tests/maths/test_softmax.py tests/maths/test_simplex.py \
	tests/maths/test_spectrum.py tests/maths/test_moments.py tests/maths/test_ranks.py tests/maths/test_resampling.py \
	tests/contract/test_mechanisms.py tests/test_lock.py

quick: lint type
	$(BIN)/pytest --numprocesses 2 --dist load $(QUICK) -k "not compiled"

# Two workers with a thread each; the tests of a file stay together, since they share what is slow to make.
test: lint type
	$(BIN)/pytest --numprocesses 2 --dist loadfile

fuzz: setup
	HEADSCOPE_FUZZ=$(FUZZ) $(BIN)/pytest tests/hostile/test_fuzz.py

bench: setup
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python scripts/make_docs.py

mutate: setup
	$(BIN)/python scripts/mutate.py $(WHERE) --count $(or $(COUNT),40) --seed $(or $(SEED),0)

clean:
	rm -rf $(VENV) out headscope-report .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
