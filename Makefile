# Everything a clone needs: `make demo` and `make test` set themselves up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: most of torch never is.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

.PHONY: setup outside browser demo test test-all lint bench bench-outside docs clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt "torch==2.13.0"
	$(INSTALL) -c constraints.txt -e ".[dev]"
	touch $@

# Other people's frameworks, for tests/outside. Three come without what they ask for: torchvision asks for a torch with
# CUDA, baal for notebooks, darts for compilers; the few parts of it that are needed are named. torch stays as it is.
ALONE := torchvision baal darts
TOGETHER := transformers timm torch-geometric deepxde lightning skorch monai structlog statsmodels holidays nfoursid
ADD := $(INSTALL) -c constraints.txt -c constraints-outside.txt
TORCH := $(BIN)/python -c "import torch; print(torch.__version__)"

outside: $(VENV)/.outside

$(VENV)/.outside: $(VENV)/.installed constraints-outside.txt
	before=$$($(TORCH)) && $(ADD) --no-deps $(ALONE) && $(ADD) $(TOGETHER) && test "$$before" = "$$($(TORCH))"
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

test-all: setup outside browser lint
	$(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

BENCHMARKS := throughput training scaling efficiency classifiers auto_on_zoo interval_coverage tolerance time_to_accuracy nested small_budgets latency kernels

bench: setup
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit 1; done

# Takes an hour or more, and the frameworks.
bench-outside: outside
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/outside.py

docs: setup
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site out .mypy_cache .ruff_cache .pytest_cache .hypothesis
