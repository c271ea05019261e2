# Everything a clone needs: `make demo` and `make test` set themselves up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: setup browser demo test test-all lint bench docs clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/mlmc-dropout demo

browser:
	scripts/install_browser.sh

test: setup browser lint
	$(BIN)/python -m pytest -q -m "not slow"

test-all: setup browser lint
	$(BIN)/python -m pytest -q

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	for script in benchmarks/*.py; do $(BIN)/python $$script; done

docs: setup
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site out .mypy_cache .ruff_cache .pytest_cache .hypothesis
