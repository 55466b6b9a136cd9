# Two commands: `make demo` and `make test`. Both set up everything they need in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
EXTRAS := lab,timm,tune,ray,dev

.PHONY: demo test lint types imports setup browser clean

demo: setup
	$(BIN)/gence compare

test: setup browser lint types imports
	$(BIN)/python -m pytest -n 2 --dist loadscope --cov=gence --cov-report=term:skip-covered --durations=15

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	touch $(STAMP)

browser:
	@sh scripts/install_browser.sh

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .coverage
