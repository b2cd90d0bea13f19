# Everything sets itself up in .venv; nothing outside the checkout is changed.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
# One thread a worker: two OpenMP teams on two cores are slower than one thread each.
PYTEST  = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup

.PHONY: help demo test lint unit attacks results docs clean
.DEFAULT_GOAL := help

help:  ## what this Makefile can do
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run  ## set up, then the main job on the embedded data (about a minute)
	$(BIN)/camri demo

test: lint unit  ## set up, then lint, types and tests

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(VENV)/.dev  ## tests and doctests
	$(PYTEST)

# The suite of attacks, and tests of hostile input that stand beside the code they attack.
ATTACKS = tests/attacks tests/study/test_cluster.py tests/data/test_bad_input.py tests/data/test_official.py \
  tests/data/test_decode.py tests/export/test_files.py tests/export/test_predict.py tests/report/test_tables.py \
  tests/report/test_page.py tests/report/test_slider.py tests/decision/test_command.py::test_hostile_names_are_shown_as_they_are

attacks: $(VENV)/.dev  ## the long attacks too: random kills, flipped bits, fuzzed files
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "long or not long" $(ATTACKS)

results: $(VENV)/.dev  ## results with stored scores anew from per-image scores (RUNS=folder: of the screenings too)
	$(BIN)/python -m tools.releases rebuild $(RUNS)

docs: $(VENV)/.dev  ## fill the pages from reproduce/
	$(BIN)/python -m tools.docs

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[fit]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.run
