# `make demo` and `make test` set themselves up on a fresh clone. ARGS goes to the tool: make test ARGS="-k border"
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# onnxruntime's training build replaces the package onnxruntime, so it has an environment of its own.
TRAINING_VENV ?= .venv-training
TRAINING_READY := $(TRAINING_VENV)/.ready
TRAINING_PYTHON ?= $(BIN)/python python3.12 python3.11 python3.10

.DEFAULT_GOAL := help
.PHONY: help demo test test-training cover lint type bench accuracy docs dist venv clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## quantize a real model and print float beside INT8
	@$(BIN)/python -m benchmarks.demo $(ARGS)

test: $(READY)  ## run the unit suite
	$(BIN)/python -m pytest -n auto -m "not slow and not training" $(ARGS)

test-training: $(READY) $(TRAINING_READY)  ## train what onnxq writes, on onnxruntime's training build
	ONNXQ_TRAINING_PYTHON=$(abspath $(TRAINING_VENV))/bin/python $(BIN)/python -m pytest -rs -m training tests/training_build $(ARGS)

cover: $(READY)  ## run the unit suite and fail where less than 90 % of onnxq is covered
	$(BIN)/python -m pytest -n auto -m "not slow and not training" --cov --cov-fail-under=90 $(ARGS)

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

$(TRAINING_READY): tests/training_build/requirements.txt | $(READY)
	@found=; for python in $(TRAINING_PYTHON); do \
	  if $$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2> /dev/null; \
	  then found=$$python; break; fi; done; \
	test -n "$$found" || \
	  { echo "onnxruntime-training-cpu has wheels for Python 3.10 to 3.12 only, and there is none; for example:" \
	    "make test-training TRAINING_PYTHON=/opt/python3.12/bin/python" >&2; exit 1; }; \
	echo "setting up $(TRAINING_VENV) with $$found, once"; \
	test -x $(TRAINING_VENV)/bin/pip || $$found -m venv $(TRAINING_VENV)
	@$(TRAINING_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

clean:  ## remove what was built; the environments and the downloads in .cache stay
	rm -rf build dist demo-out *.egg-info .coverage htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis
