# Two commands do everything: `make demo` and `make test`. Both make .venv where it is missing.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PARALLEL := -n auto --maxprocesses 4 --dist loadfile

.PHONY: demo test test-all lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed  ## train a small grid, fit the law, write demo/report.md
	$(BIN)/routelaws sweep demo --out demo

test: $(VENV)/.installed  ## a few generated examples of each property; minutes
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q -m "not slow" $(PARALLEL)

test-all: $(VENV)/.installed  ## many examples, and the slow tests
	$(BIN)/ruff check .
	ROUTELAWS_PROFILE=default $(BIN)/python -m pytest -q $(PARALLEL)

lint: $(VENV)/.installed
	$(BIN)/ruff check .

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

clean:  ## remove the environment and the demo's results
	rm -rf $(VENV) demo
