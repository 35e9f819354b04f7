# Needs make and Python 3.11+, nothing else. `make setup` fills .venv once; the other targets call it first.
# ARGS reach the command:  make decide ARGS="--workload chat"   make test ARGS="-k timeline"

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; exit; fi; done; echo python3)
BIN := .venv/bin

.PHONY: decide test setup lint format clean

decide: setup
	$(BIN)/netgain decide --quick $(ARGS)

test: setup
	$(BIN)/python -m pytest $(ARGS)

setup:
	@$(PYTHON) tools/bootstrap.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
