# Two commands do everything: `make demo` and `make test`. Both make .venv where it is missing, as `make bench` does.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One process more than there are cores, and four at most: some wait while others compile.
CORES = $(shell $(PYTHON) -c 'import os; print(os.cpu_count())' 2>/dev/null)
PARALLEL = -n $(if $(filter 1 2,$(CORES)),3,4) --dist loadfile

# The marks of the tests that `make test` runs. CI adds the slow tests that no quick test covers: "not slow or value".
MARKED = not slow

# The tests that compare what is said with a file of accelerated/tests/approved.
APPROVED := approved or drawn or printed or prints or flags

.PHONY: help demo coverage test test-all approve campaign study study2 parity tutorials tutorials-check pods site bench lint budget clean
.DELETE_ON_ERROR:

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed  ## train a small grid of models, fit the law and write demo/report.md and demo/report.html
	$(BIN)/routelaws sweep demo --out demo

test: lint  ## run the quick tests, with few examples per property (minutes); TESTS="FOLDER ..." selects some
	$(BIN)/python -m pytest -q -m "$(MARKED)" $(PARALLEL) $(TESTS)

test-all: lint  ## run all tests, with many examples per property (40 minutes)
	ROUTELAWS_PROFILE=default $(BIN)/python -m pytest -q $(PARALLEL)

approve: $(VENV)/.installed  ## rewrite the approved outputs that differ; then read every line of git diff
	ROUTELAWS_APPROVE=1 $(BIN)/python -m pytest -q -m "not slow" $(PARALLEL) accelerated/tests -k "$(APPROVED)"

campaign: $(VENV)/.installed  ## check that 200 killed runs end with the table of an undisturbed run (an hour); CAMPAIGN="--runs 20 --seed 1"
	$(BIN)/python tools/campaign.py --json campaign.json $(CAMPAIGN)

study: $(VENV)/.installed  ## train the missing runs of the study (hours); STUDY="--index 3 --of 8" trains a part
	$(BIN)/python docs/study/text.py python build/text/python
	$(BIN)/routelaws sweep study $(if $(wildcard docs/study/results.csv),--have docs/study/results.csv) --out build/study $(STUDY)

study2: $(VENV)/.installed  ## train the missing runs of the second study's smaller sizes (hours); STUDY2=5 trains the largest size
	@test "$(STUDY2)" != 5 || git ls-files --error-unmatch docs/study2/prediction.json
	$(BIN)/python docs/study/text.py python build/text/python
	for size in $(or $(STUDY2),0 1 2 3 4); do \
	  $(BIN)/routelaws sweep docs/study2/study2.toml --index $$size --of 6 --jobs 1 \
	    $(if $(wildcard docs/study2/results.csv),--have docs/study2/results.csv) --out build/study2 || exit; done

wild: $(VENV)/.installed  ## judge the routers of other libraries and write docs/wild (half an hour, 2 GB); WILD="fairscale attnax" selects some
	$(BIN)/python tools/wild $(WILD)

parity: $(VENV)/.installed  ## compare pairs of programs and write docs/wild/parity.md (half an hour, 3 GB); PARITY="openvino mlx-lm" selects some
	$(BIN)/python tools/wild/pairs.py $(PARITY)

tutorials: $(VENV)/.installed  ## run the lessons and write their pages; LESSONS="04 11" selects some; add --notebooks for notebooks
	$(BIN)/python tutorials/build.py $(LESSONS)

tutorials-check: $(VENV)/.installed  ## fail if a page differs from the output of its script; writes nothing
	$(BIN)/python tutorials/build.py --check $(LESSONS)

pods: $(VENV)/.installed  ## compile a small run for a slice of a TPU pod, without a TPU (minutes; 140 MB)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,tpu]'
	$(BIN)/python -m pytest -q accelerated/tests/test_slices.py

site: $(VENV)/.site  ## build the site in build/site and check its links (two minutes)
	$(BIN)/python docs/site/make.py

$(VENV)/.site: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[site]'
	@touch $@

bench: $(VENV)/.bench  ## measure speed ratios to other libraries and write bench.json; BENCH="--only dense-step" selects some
	$(BIN)/python -m benchmarks $(BENCH)

# OR-tools asks for a protobuf that is older than the one of constraints.txt. Its flows, all that is measured, need none.
$(VENV)/.bench: $(VENV)/.installed
	@for peer in 'torch>=2.6' 'transformers>=5' 'POT>=0.9.6' 'ott-jax>=0.5' '--no-deps ortools>=9.12'; do \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$peer || \
	  echo "$$peer could not be installed; bench omits its figures."; done
	@touch $@

coverage: $(VENV)/.installed  ## measure how often the intervals hold, and write docs/coverage.md (half an hour of two cores)
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m benchmarks.coverage $(COVERAGE)

lint: $(VENV)/.installed  ## check code with ruff, words with tools/prose.py and the size of the code with tools/budget.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/budget.py

budget: $(VENV)/.installed  ## also count the files that fit, reproduce, train and the suite enter (a minute)
	$(BIN)/python tools/budget.py --traced

# Without --no-compile, half of the time would compile modules that nothing imports.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[test]'
	@touch $@

clean:  ## remove the environment, the demo's results and the site
	rm -rf $(VENV) demo build/site build/site-pages
