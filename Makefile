# Every verb works on a fresh machine with Python 3.11 or newer, make and git; each installs what it needs, once.
# The same verbs run here and in CI. Another interpreter: make setup PYTHON=/path/to/python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Two workers, each on a core of its own (tests/conftest.py).
PAIRS  := -q -n 2 --dist loadfile --no-loadscope-reorder
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: setup demo test test-all test-tracking fuzz lint bench bench-groundtruth bench-data bench-datacube bench-dialogue bench-recipes bench-pipeline chaos chaos-pipeline docs docs-version clean help
.DELETE_ON_ERROR:

setup: $(STAMP)  ## make .venv and install Hasten, its tools and its examples, at the pinned versions

$(STAMP): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "There is no '$(PYTHON)'. Install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$$("$(PYTHON)" --version 2>&1) is too old: Hasten needs 3.11 or newer. Name one: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@"$(BIN)/python" -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear "$(VENV)"
	.ci/install torch==2.13.0 -e '.[dev,examples,recipes]'
	@touch "$(STAMP)"

demo: setup  ## see Hasten profile and tune an example
	$(BIN)/hasten demo

test: lint  ## lint, then run the tests: about 12 minutes on two cores
	$(BIN)/python -m pytest $(PAIRS) -m "not long and not alone" --durations=25

test-all: test  ## the tests, then the long ones: whole tunings, every framework, kills
	$(BIN)/python -m pytest $(PAIRS) -m "long and not alone" --durations=25
	$(BIN)/python -m pytest -q -m alone --durations=15

fuzz: setup  ## read damaged files of every format, for ten minutes each (about two hours)
	HASTEN_FUZZ_S=600 $(BIN)/python -m pytest -q -n 2 -m long tests/data/test_fuzz.py

test-tracking: setup  ## test the places for metrics whose packages are large: MLflow, Weights & Biases
	.ci/install -e '.[tracking]'
	$(BIN)/python -m pytest -q tests/monitor/test_sinks.py tests/pipeline/test_release.py

lint: setup  ## rules, format, types and floors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PYTHONHASHSEED=0 $(BIN)/mypy --num-workers 2 # what it joins unlike types to can depend on the order of sets
	$(BIN)/lint-imports

bench: setup  ## measure again what benchmarks/results holds for this machine
	.ci/install -e '.[bench]'
	$(BIN)/python -m benchmarks

bench-groundtruth: setup  ## score Hasten on scripts whose bottleneck is known
	$(BIN)/python -m benchmarks groundtruth

bench-data: setup  ## measure the data layer against the libraries people use
	.ci/install -e '.[bench-data]'
	@# Of what LitData asks for, torchvision would bring another torch, and text and tokens need neither it nor obstore.
	.ci/install --no-deps litdata
	$(BIN)/python -m benchmarks data

bench-dialogue: setup  ## measure what the dialogue recipe is made of, in parts; HASTEN_DATA names the data
	.ci/install -e '.[dialogue,private,bench-dialogue]'
	$(BIN)/python -m benchmarks dialogue

bench-datacube: setup  ## measure the datacube recipe against the usual way, in parts
	.ci/install -e '.[datacube,bench-datacube]'
	$(BIN)/python -m benchmarks datacube

bench-recipes: setup  ## tune and train the recipes on real data, in parts (about four hours); HASTEN_DATA names the data
	@# Only docTR's maker of target maps is run, which needs nothing of what docTR asks for.
	.ci/install --no-deps python-doctr
	$(BIN)/python -m benchmarks recipes

chaos: setup  ## kill runs at random moments and compare what they end with (QUICK=1: a dozen times, recording nothing)
	$(BIN)/python -m benchmarks chaos $(if $(QUICK),--quick)

bench-pipeline: setup  ## measure what pipelines add to a stage, how well their time is predicted, and readers of releases
	$(BIN)/python -m benchmarks pipeline --part added parallel readers

chaos-pipeline: setup  ## kill processes of a pipeline a hundred times, and compare what its stages give (ten minutes)
	$(BIN)/python -m benchmarks pipeline --part chaos --again

docs: setup  ## write the tables of README.md, and build the documentation site in site/
	.ci/install -e '.[docs]'
	$(BIN)/python -m benchmarks.tables
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-version: docs  ## keep the site of a release on the branch gh-pages: make docs-version VERSION=0.1
	PATH="$(CURDIR)/$(BIN):$$PATH" HASTEN_DOCS_OFFLINE=false NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases "$(VERSION)" latest

clean:  ## remove what the other verbs made, but for .venv and benchmarks/results
	rm -rf site dist hasten-out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile
