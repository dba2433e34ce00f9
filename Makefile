# One-line wrappers around plain pip. `make demo` and `make test` set everything up in .venv on a machine that has Python 3.11
# or newer with venv and headers, a C compiler and make.

VENV ?= .venv
BIN := $(VENV)/bin
FILE ?= README.md
DEVICE ?=
ARGS ?=
TESTS ?= tests

# The first interpreter that is new enough; PYTHON=… chooses another.
NEW_ENOUGH := -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$p" $(NEW_ENOUGH) >/dev/null 2>&1 && { command -v "$$p"; break; }; done)

PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE $(shell find src -name '*.py' -o -name '*.pyi' -o -name 'py.typed' -o -name '*.[ch]')
DEVICE_ARGUMENT := $(if $(DEVICE),--device $(DEVICE))

.PHONY: demo test test-all coverage quick libraries bench soak sanitize fuzz lint format types docs model wheel release gpu level-zero opencl hip ur-loader vulkan engines clean
.DELETE_ON_ERROR:
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes import the same modules

demo: $(VENV)/installed ## two processes share FILE (default: README.md) on DEVICE
	$(BIN)/xpushare demo --file "$(FILE)" $(DEVICE_ARGUMENT) $(ARGS)

# Files in the order of tests/conftest.py, each by one worker. NumPy's threads cost CPU time in each of hundreds of processes,
# and no test needs them: `make test` goes without, `make test-all` runs as users have it. Tests often wait: three workers keep
# two CPUs busy.
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --basetemp $(VENV)/tmp

test: $(VENV)/installed $(VENV)/test ## the tests, without the exhaustive ones: about five minutes on two idle CPUs
	OPENBLAS_NUM_THREADS=1 $(PYTEST) -n 3 -m "not soak and not exhaustive" $(TESTS) $(ARGS)

test-all: $(VENV)/installed $(VENV)/test $(VENV)/lint ## all tests, some of which ask mypy and pyright
	$(PYTEST) -m "not soak" $(TESTS) $(ARGS)

coverage: $(VENV)/installed $(VENV)/test ## lines and branches of the package that `make test-all` runs, and `make test` alone
	$(BIN)/python scripts/coverage --folder $(VENV)/coverage $(ARGS)

quick: $(VENV)/test $(VENV)/quick ## TESTS on the sources as they stand, without an installation: C that changed is compiled, into src
	$(BIN)/cmake --log-level=WARNING -S . -B build/quick -DPython_EXECUTABLE="$(abspath $(BIN))/python" \
		-DSKBUILD_SABI_COMPONENT=Development.SABIModule -DSKBUILD_SABI_VERSION=3.11
	$(BIN)/cmake --build build/quick --parallel 2 >/dev/null
	$(BIN)/cmake --install build/quick --prefix "$(CURDIR)/src" >/dev/null
	PYTHONPATH="$(CURDIR)/src" $(BIN)/python -m pytest --basetemp $(VENV)/tmp $(TESTS) $(ARGS)

libraries: $(VENV)/libraries ## torch, JAX, Ray, Dask and others, into the same environment, so that their tests run

soak: $(VENV)/installed ## the long programs in soak/; ARGS=--quick: their short form, "--seconds 600": each so long, --together: side by side
	$(BIN)/python -m soak $(ARGS)

sanitize: $(VENV)/installed $(VENV)/test ## the engine's own tests in C: plain, and under the thread, address and undefined-behaviour sanitizers
	$(BIN)/python -m pytest tests/native/test_engine.py --basetemp $(VENV)/tmp $(ARGS)

fuzz: $(VENV)/made ## data from peers, by libFuzzer (needs clang); ARGS="--seconds 10" for the short form, half an hour each without
	$(BIN)/python tests/native/fuzz/run.py $(ARGS)

bench: $(VENV)/installed $(VENV)/bench ## latency and bandwidth against what you would use instead
	$(BIN)/xpushare bench $(DEVICE_ARGUMENT) $(ARGS)

gpu: ## what needs an NVIDIA GPU, on a machine without a package registry: tests, conformance, figures into build/results/
	scripts/gpu

hip: $(VENV)/installed $(VENV)/test ## HIP without an AMD GPU: a libamdhip64 that forwards, AMD's headers and library; results into build/results/
	PYTHON=$(BIN)/python scripts/hip $(ARGS)

level-zero: $(VENV)/installed $(VENV)/test ## Level Zero without an Intel GPU: drivers, their tests, the conformance suite; results into build/results/
	PYTHON=$(BIN)/python scripts/level_zero $(ARGS)

opencl: $(VENV)/installed $(VENV)/test ## OpenCL on two drivers for CPUs: their tests, the conformance suite, kills; results into build/results/
	PYTHON=$(BIN)/python scripts/opencl $(ARGS)

ur-loader: $(VENV)/installed $(VENV)/test ## a C++ SYCL program and Python share, through Unified Runtime's own loader; results into build/results/
	PYTHON=$(BIN)/python scripts/ur_loader $(ARGS)

vulkan: $(VENV)/installed $(VENV)/test $(VENV)/vulkan ## memory of Vulkan programs, on Mesa's software driver; results into build/results/
	PYTHON=$(BIN)/python scripts/vulkan $(ARGS)

engines: $(VENV)/made ## plug-ins for inference engines against vLLM, checkpoint-engine, SGLang, verl and LMCache, in environments of their own
	PYTHON=$(BIN)/python scripts/engines $(ARGS)

lint: $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/installed $(VENV)/lint $(VENV)/bench
	$(BIN)/mypy --strict
	$(BIN)/pyright

docs: $(VENV)/docs ## into site/, with a check of its search (needs node) and widths (needs chromium)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python scripts/site

model: ## the event protocol and that of channels, checked by spin; ARGS=--quick: a part of it, and that the whole was checked as it is
	docs/model/check $(ARGS)
	docs/model/check_channels

wheel: $(VENV)/build ## into dist/, for glibc 2.28 and newer; fails where it would need a newer one
	rm -rf build/wheel dist/xpushare-*.whl
	$(BIN)/python -m build --wheel --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --plat manylinux_2_28_$(shell uname -m) --wheel-dir dist build/wheel/*.whl
	$(BIN)/auditwheel show dist/*.whl

release: wheel ## the wheel and the source distribution, as the package index wants them; scripts/release prepares the tree
	$(BIN)/python -m build --sdist --outdir dist
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.so' -o -name '*.so.1' | xargs rm -f
	rm -rf "$(VENV)"

$(VENV)/made:
	@test -n "$(PYTHON)" || { echo "xpushare needs Python 3.11 or newer with its venv module (Debian: python3-venv); none was found. PYTHON=… names one"; exit 1; }
	@"$(PYTHON)" $(NEW_ENOUGH) || { echo "$(PYTHON) is older than Python 3.11 or lacks the venv module (Debian: python3-venv)"; exit 1; }
	@command -v cc >/dev/null || { echo "xpushare needs a C compiler (Debian: gcc)"; exit 1; }
	"$(PYTHON)" -m venv "$(VENV)"
	$(PIP) install --quiet --upgrade "pip>=25.1"  # older ones know no --group
	touch $@

$(VENV)/installed: $(VENV)/made $(SOURCES)
	$(PIP) install --quiet .
	touch $@

# Tools: the dependency groups and extras of pyproject.toml.
$(VENV)/test $(VENV)/quick $(VENV)/docs $(VENV)/build $(VENV)/libraries $(VENV)/vulkan: $(VENV)/%: $(VENV)/made pyproject.toml
	$(PIP) install --quiet --group $*
	touch $@

# mypy and pyright check what the tests import, too; pyright's own node comes from the package index.
$(VENV)/lint: $(VENV)/made pyproject.toml
	$(PIP) install --quiet --group lint --group test "pyright[nodejs]"
	touch $@

$(VENV)/bench: $(VENV)/%: $(VENV)/installed pyproject.toml
	$(PIP) install --quiet ".[$*]"
	touch $@
