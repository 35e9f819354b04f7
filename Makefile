# Needs make and Python 3.11+, nothing else. `make setup` fills .venv once; the other targets call it first.
# ARGS reach the command:  make decide ARGS="--workload chat"   make test ARGS="-k timeline"

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; exit; fi; done)
BIN := .venv/bin

.PHONY: decide test setup lint format clean

decide: setup
	$(BIN)/netgain decide --quick $(ARGS)

test: setup
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile $(ARGS)

setup:
	@test -n "$(PYTHON)" || { echo "setup: no Python 3.11 or newer on PATH; install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) tools/bootstrap.py
	$(if $(filter setup,$(MAKECMDGOALS)),@echo "next: . $(BIN)/activate && netgain doctor")

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis
