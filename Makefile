# Needs Python 3.10 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

# The one release that works with current torch; pyproject.toml has the reason for --no-deps.
OPENNMT := OpenNMT-py==2.3.0

.PHONY: demo demo-full test test-quick coverage test-slow test-faults fuzz lint bench bench-full docs options audit dist clean install

demo: $(INSTALLED)          ## train and translate on the toy corpus, in minutes
	$(RUN) tools/demo.py

demo-full: demo             ## the paper's tables on the toy corpus, in minutes on two cores
	$(RUN) tools/reproduce.py toy -output demo/tables

test: $(INSTALLED)          ## all tests but the slow ones
	$(RUN) -m pytest -n 2

test-quick: $(INSTALLED)    ## the unit tests alone, in under two minutes on two cores
	$(RUN) -m pytest -n 2 tests/unit

coverage: $(INSTALLED)      ## the unit tests with coverage; fails below the floor in pyproject.toml
	$(RUN) -m pytest -n 2 tests/unit --cov --cov-report=term:skip-covered --cov-report=xml

test-slow: $(INSTALLED)     ## system tests that train for minutes
	$(RUN) -m pytest -m slow

test-faults: $(INSTALLED)   ## interrupt and break runs, resume them, print the outcomes, in minutes
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

audit: $(INSTALLED)         ## known vulnerabilities of the versions of constraints.txt; needs the network
	$(RUN) -m pip install --quiet pip-audit
	$(RUN) -m pip_audit --strict --requirement constraints.txt --no-deps --disable-pip

dist: $(INSTALLED)          ## dist/: source distribution and wheel
	$(RUN) -m build --no-isolation

install: $(INSTALLED)       ## the environment alone

# The versions of constraints.txt, torch's among them.
$(INSTALLED): setup.py constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --no-deps $(OPENNMT)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) demo docs/_build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage coverage.xml
