# Needs Python 3.10 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: demo demo-full test test-slow test-faults fuzz lint bench bench-full docs audit clean install

demo: $(INSTALLED)          ## train and translate on the toy corpus, in minutes
	$(RUN) tools/demo.py

demo-full: demo             ## the paper's tables on the toy corpus, in minutes on two cores
	$(RUN) tools/reproduce.py toy -output demo/tables

test: $(INSTALLED)          ## all tests but the slow ones
	$(RUN) -m pytest -n 2

test-slow: $(INSTALLED)     ## system tests that train for minutes
	$(RUN) -m pytest -m slow

test-faults: $(INSTALLED)   ## break runs on purpose, resume them, print what came of it, in minutes
	$(RUN) -m tests.faults

fuzz: $(INSTALLED)          ## random changes to checkpoints, for ten minutes; MINUTES=1 for one
	$(RUN) -m tests.fuzz -minutes $(or $(MINUTES),10)

lint: $(INSTALLED)          ## format, lint, types, imports
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

bench: $(INSTALLED)         ## speed and memory against stock OpenNMT-py
	$(RUN) -m benchmarks

bench-full: $(INSTALLED)    ## the same at more shapes, and scaling; writes docs/benchmarks.md
	$(RUN) -m benchmarks -parts training decoding scaling -shapes all -rounds 3 \
		-json benchmarks/results.json -update docs/benchmarks.md

options: $(INSTALLED)       ## docs/options.md, from the settings
	$(RUN) docs/_ext/options.py

docs: $(INSTALLED)          ## docs/_build/html
	$(RUN) -m sphinx -W --keep-going -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

audit: $(INSTALLED)         ## known holes in the versions of constraints.txt; needs the network
	$(RUN) -m pip install --quiet pip-audit
	$(RUN) -m pip_audit --strict --requirement constraints.txt --no-deps --disable-pip

install: $(INSTALLED)       ## the environment alone

# Constraints come first on their own line: torch's CPU build is picked by its exact version.
$(INSTALLED): setup.py constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) demo docs/_build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
