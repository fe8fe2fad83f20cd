# moe-prof: `make demo` runs the main job, `make test` checks everything. Both set themselves up.
PYTHON ?= python3
VENV ?= .venv
VENV_TPU ?= .venv-tpu
BIN := $(VENV)/bin
DEMO ?= demo-run
comma := ,
PROTOC_VERSION := 1.76.0

SOURCES_OF_BUILD := pyproject.toml constraints.txt $(wildcard setup.py analyzers/reading/*.[ch])
FUZZ_RUNS ?= 300000
# Real traces whose lines are mutated: packed runs, or any .xplane.pb file.
FUZZ_TRACES ?= $(wildcard tests/data/*.tar.xz)
PROTOS := $(wildcard analyzers/reading/protos/*.proto)

.PHONY: help demo notebooks test test-tpu test-tpu-here lint fuzz protos lock clean

help:
	@echo "make demo      install into $(VENV), capture ring and permute on this machine, print what changed"
	@echo "make notebooks install with JupyterLab, open the notebooks"
	@echo "make test      install with test tools, then lint, type-check and run all tests"
	@echo "make test-tpu  install with libtpu into $(VENV_TPU), run the tests that compile for TPUs (none is needed)"
	@echo "make lint      ruff and mypy only"
	@echo "make fuzz      mutate inputs of the C trace walker under sanitizers, FUZZ_RUNS=$(FUZZ_RUNS) of them"
	@echo "make protos    regenerate the protobuf modules of the trace reader"
	@echo "make lock      resolve constraints.txt anew"
	@echo "make clean     remove what was built (demo runs stay)"
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV)"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "moe-prof needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# uv installs the same pinned set five times faster than pip (8 s against 49 s); pip serves where uv does not run.
# Arguments: what to install. A stamp file says that it is done for this state of $(SOURCES_OF_BUILD).
define install
	@$(BIN)/python -m pip install --quiet uv 2>/dev/null && \
	    $(BIN)/python -m uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '$(1)' || \
	    $(BIN)/python -m pip install --quiet -c constraints.txt -e '$(1)'
	@touch $@
endef

$(VENV)/.installed: $(SOURCES_OF_BUILD) | $(BIN)/python
	@echo "installing moe-prof into $(VENV)"
	$(call install,.)

$(VENV)/.installed-test: $(SOURCES_OF_BUILD) | $(BIN)/python
	@echo "installing moe-prof and its test tools into $(VENV)"
	$(call install,.[test])
	@touch $(VENV)/.installed

# A fresh folder every time: a run is never overwritten. The ring runs over two devices, which the CPU simulates.
demo: $(VENV)/.installed
	@out=$(DEMO); n=1; while [ -e "$$out" ]; do n=$$((n + 1)); out=$(DEMO)-$$n; done; set -e; \
	for what in "ring --ep 2" permute; do \
	    run="$$out/$${what%% *}"; \
	    echo; echo "== moe-prof capture $$what --preset tiny --steps 5 --rounds 3 -o $$run"; \
	    $(BIN)/moe-prof capture $$what --preset tiny --steps 5 --rounds 3 -o "$$run"; \
	    echo; echo "== moe-prof diff $$run"; \
	    $(BIN)/moe-prof diff "$$run"; \
	done

$(VENV)/.installed-notebook: $(SOURCES_OF_BUILD) | $(BIN)/python
	@echo "installing moe-prof and JupyterLab into $(VENV)"
	$(call install,.[notebook])

# In containers and on TPU machines people are often root, which Jupyter refuses unless it is told.
notebooks: $(VENV)/.installed-notebook
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks

test: lint
	$(BIN)/python -m pytest

# In an environment of its own: libtpu must match jaxlib, and capture on other devices does not want it.
test-tpu:
	@$(MAKE) --no-print-directory VENV=$(VENV_TPU) test-tpu-here

test-tpu-here: $(VENV)/.installed-tpu
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -m tpu

$(VENV)/.installed-tpu: $(SOURCES_OF_BUILD) | $(BIN)/python
	@echo "installing moe-prof with libtpu into $(VENV)"
	$(call install,.[test$(comma)tpu])

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The sanitizers end the program at the first wrong access, and the input that led to it is left in crash-input.
# Only the walker is watched for new code (trace-pc), not the fuzzer itself.
SANITIZED = $(CC) -g -O2 -std=gnu11 -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all

fuzz: $(VENV)/.installed-test
	rm -rf build/fuzz && mkdir -p build/fuzz
	$(BIN)/python -m tests.fuzz.make_seeds build/fuzz/seeds $(FUZZ_TRACES)
	$(SANITIZED) -fsanitize-coverage=trace-pc -c tests/fuzz/walker_target.c -o build/fuzz/target.o
	$(SANITIZED) tests/fuzz/driver.c build/fuzz/target.o -o build/fuzz/walker_fuzz
	build/fuzz/walker_fuzz $(FUZZ_RUNS) 1 - build/fuzz/seeds tests/fuzz/corpus

# In an environment of its own: grpcio-tools pins an older protobuf than the one that runs.
protos:
	$(PYTHON) -m venv build/protoc
	build/protoc/bin/python -m pip install --quiet grpcio-tools==$(PROTOC_VERSION) 'setuptools<81'
	build/protoc/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)
	rm -rf build/protoc

lock: | $(BIN)/python
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-annotate \
	    --no-emit-index-url --custom-compile-command "make lock" --output-file constraints.txt pyproject.toml

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
