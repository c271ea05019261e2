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

# The browser tests say so and are skipped where this fails.
browser:
	-scripts/install_browser.sh

# Two workers with one thread each: torch's own threads would only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test: setup browser lint
	$(PYTEST) -m "not slow"

test-all: setup browser lint
	$(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

BENCHMARKS := throughput training scaling efficiency auto_on_zoo coverage tolerance time_to_accuracy

bench: setup
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

docs: setup
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site out .mypy_cache .ruff_cache .pytest_cache .hypothesis
