# `make demo` and `make test` set themselves up on a fresh clone. ARGS goes to the tool: make test ARGS="-k border"
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test cover lint type bench accuracy docs dist venv clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## quantize a real model and print float beside INT8
	@$(BIN)/python -m benchmarks.demo $(ARGS)

test: $(READY)  ## run the unit suite
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

cover: $(READY)  ## run the unit suite and fail where less than 90 % of onnxq is covered
	$(BIN)/python -m pytest -m "not slow" --cov --cov-fail-under=90 $(ARGS)

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(READY)  ## mypy, strict
	$(BIN)/mypy

bench: $(READY)  ## speed and memory beside onnxruntime's quantizer; ARGS=--full for all sizes
	$(BIN)/python -m benchmarks.quantize $(ARGS)

accuracy: $(READY)  ## accuracy on real models beside onnxruntime's quantizer
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python -m benchmarks.accuracy $(ARGS)

docs: $(READY)  ## write the reference pages under docs/
	$(BIN)/python -m onnxq.docs docs

dist: $(READY)  ## build sdist and wheel into dist/
	rm -rf dist
	$(BIN)/python -m build

venv: $(READY)  ## create .venv and install everything into it

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "onnxq needs Python 3.10 or newer, for example: make venv PYTHON=python3.12" >&2; exit 1; }
	@echo "setting up $(VENV), once; takes a minute or two"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

clean:  ## remove what was built; .venv and the downloads in .cache stay
	rm -rf build dist demo-out *.egg-info .coverage htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis
