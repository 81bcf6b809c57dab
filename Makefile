# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` do all the set-up: system packages (Debian, as root), an environment
# in .venv, the op library. PYTHON, BAZEL, CC, NVCC, TF_EMBED_CUDA and TF_EMBED_CACHE are as in
# configure.sh.

TF := 2.21.0
VENV := .venv/tf221
OLD_TF := 2.16.2
OLD_VENV := .venv/tf216
TFRA_VENV := .venv/tfra216

# The first Python that TensorFlow $(TF) and $(OLD_TF) both have wheels for, and that can make an
# environment.
PYTHON ?= $(shell for python in python3.11 python3.12 python3; do \
    $$python -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
        2>/dev/null && echo $$python && break; done)
BAZEL ?= $(or $(shell command -v bazel),$(shell command -v bazelisk),bazel)
PYTEST_WORKERS ?= -n 2 --dist worksteal
PYTEST_ARGS ?= $(PYTEST_WORKERS) -m "not slow"
export BAZEL
export TF_CPP_MIN_LOG_LEVEL ?= 2

# Debian's Bazel, unless there is another one already.
BAZEL_PACKAGES := bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
OTHER_BAZEL = $(if $(wildcard /usr/share/bazel/A-server.jar),,$(filter /%,$(BAZEL)))
PACKAGES = g++ libgtest-dev python3 python3-venv $(if $(OTHER_BAZEL),,$(BAZEL_PACKAGES))

# $(call packages,NAMES): installs what Debian's dpkg does not have. Elsewhere configure.sh says
# what is missing.
define packages
@if command -v dpkg-query apt-get >/dev/null; then \
  missing=; \
  for name in $(1); do \
    dpkg-query -W -f '$${db:Status-Status}\n' $$name 2>/dev/null | grep -qx installed || \
        missing="$$missing $$name"; \
  done; \
  if [ -n "$$missing" ] && [ "$$(id -u)" != 0 ]; then \
    echo "Packages are missing: run as root: apt-get install$$missing" >&2; exit 1; \
  elif [ -n "$$missing" ]; then \
    export DEBIAN_FRONTEND=noninteractive; \
    apt-get update -q </dev/null && apt-get install -qy --no-install-recommends $$missing </dev/null; \
  fi; \
fi
endef

# $(call environment,FOLDER,VERSION): an environment with a TensorFlow and what setup.py needs.
define environment
@[ -n "$(PYTHON)" ] || { echo "There is no Python 3.11 or 3.12: install one, or set PYTHON." >&2; exit 1; }
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install -q --upgrade pip "setuptools>=77" wheel
$(1)/bin/python -m pip install -q tensorflow-cpu==$(2)
@touch $@
endef

.PHONY: help
help:
	@echo 'make demo        train, checkpoint, export and serve a model on real flights'
	@echo 'make examples    the other examples; MovieLens is downloaded, or read from DATA=folder'
	@echo 'make test-quick  the smoke tests of each room, 2 minutes'
	@echo 'make test        the C++ and the Python tests, on TensorFlow $(TF), 10 minutes on 2 cores'
	@echo 'make test-slow   the Python tests that make test leaves out, nightly'
	@echo 'make test-gpu    tests of tables on a GPU, with the host for a GPU; a part of make test'
	@echo 'make test-tf216  build for TensorFlow $(OLD_TF) and run the smoke tests there'
	@echo 'make test-tfra   the same calls of TFRA and of tf_embed, side by side'
	@echo 'make test-locks  the order of locks, checked while many threads run; a part of make test'
	@echo 'make campaigns   random and hostile calls, threads and leaks, for long'
	@echo 'make sanitize    the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer'
	@echo 'make lint        ruff, mypy, clang-format'
	@echo 'make format      ruff and clang-format, rewriting files'
	@echo 'make bench       tf_embed beside its peers; SECTIONS=lookup,adam for some of it'
	@echo 'make bench-quick what the goals are about, in less than ten minutes'
	@echo 'make bench-tbe   many tables in one layer, beside those of FBGEMM'
	@echo 'make tables      the tables of docs/: what works, tried'
	@echo 'make cuda        compile the GPU table with nvcc, for sm_80, sm_90 and PTX; needs no GPU'
	@echo 'make cuda-test   build the tests of a table on a GPU, without TensorFlow, and run them on one'
	@echo 'make cuda-benchmark  how fast it is on this GPU; HKV_DIR=checkout puts HierarchicalKV beside it'
	@echo 'make cuda-library  the GPU table with a C interface, for PyTorch and CuPy, without TensorFlow'
	@echo 'make library     the op library alone, into tf_embed/'
	@echo 'make clean       remove what was built; keeps .venv and the build cache'

.PHONY: system
system:
	$(call packages,$(PACKAGES))

$(VENV)/.tensorflow: | system
	$(call environment,$(VENV),$(TF))

.PHONY: library
library: $(VENV)/.tensorflow | system
	@$(VENV)/bin/python setup.py -q build_library

# Bazel's tests need no TensorFlow, only configure.sh's answers.
.PHONY: configured
configured: $(VENV)/.tensorflow | system
	@PYTHON=$(VENV)/bin/python ./configure.sh

$(VENV)/.ready: pyproject.toml setup.py $(VENV)/.tensorflow | library
	$(VENV)/bin/python -m pip install -q --no-build-isolation -e '.[dev]'
	@touch $@

$(VENV)/.demo: $(VENV)/.ready
	$(VENV)/bin/python -m pip install -q --no-build-isolation -e '.[demo]'
	@touch $@

.PHONY: demo
demo: library $(VENV)/.demo
	$(VENV)/bin/python examples/flights.py

.PHONY: examples
examples: library $(VENV)/.demo
	$(VENV)/bin/python examples/custom_loop.py
	$(VENV)/bin/python examples/stream_parquet.py
	$(VENV)/bin/python examples/kill_and_resume.py
	$(VENV)/bin/python examples/movielens.py $(if $(DATA),--data="$(DATA)")

.PHONY: test-quick
test-quick: library $(VENV)/.ready
	$(VENV)/bin/pytest $(PYTEST_WORKERS) -m "smoke and not slow"

.PHONY: test
test: configured library $(VENV)/.ready
	$(BAZEL) test //tests/cc/...
	$(VENV)/bin/pytest $(PYTEST_ARGS)
	$(MAKE) test-gpu test-locks

# The package with a library that checks the order of locks, for the CPU alone: nvcc does not get
# the options of the other compiler.
LOCKS := build/locks
.PHONY: test-locks
test-locks: configured $(VENV)/.ready
	$(BAZEL) test --config=locks //tests/cc/...
	@mkdir -p $(LOCKS)
	@PYTHON=$(VENV)/bin/python ./configure.sh --cpu --output=$(LOCKS)/bazelrc
	$(BAZEL) --bazelrc=$(LOCKS)/bazelrc build --config=locks //:_tf_embed.so
	@rm -rf $(LOCKS)/tf_embed && cp -r tf_embed $(LOCKS)/
	@cp -f "$$($(BAZEL) info bazel-bin)/_tf_embed.so" $(LOCKS)/tf_embed/
	PYTHONPATH=$(LOCKS) $(VENV)/bin/python tests/campaigns/stress.py $(STRESS_ARGS)

# Each prints its figures and fails on what it finds.
.PHONY: campaigns
campaigns: library $(VENV)/.ready
	$(MAKE) test-locks STRESS_ARGS=--seconds=600
	$(VENV)/bin/python tests/campaigns/stress.py --seconds=1800
	$(VENV)/bin/python tests/campaigns/raw_ops.py --calls=100000
	$(VENV)/bin/python tests/campaigns/hostile_calls.py
	$(VENV)/bin/python tests/campaigns/leaks.py --cycles=2000

.PHONY: test-slow
test-slow: library $(VENV)/.ready
	$(VENV)/bin/pytest $(PYTEST_WORKERS) -m slow

# Tables on what TensorFlow takes for a GPU and is the host: tests/cc/gpu/fake_gpu_plugin.cc. The files after
# those of GPUs know nothing of them.
.PHONY: test-gpu
test-gpu: configured library $(VENV)/.ready
	$(BAZEL) build //tests/cc/gpu:fake_gpu_plugin.so
	CUDA_VISIBLE_DEVICES= TF_EMBED_EMULATE_GPU=1 \
	    TF_PLUGGABLE_DEVICE_LIBRARY_PATH="$$($(BAZEL) info bazel-bin)/tests/cc/gpu/fake_gpu_plugin.so" \
	    $(VENV)/bin/pytest $(PYTEST_ARGS) \
	    $(addprefix tests/python/,table/gpu_tables_test.py table/gpu_storage_test.py \
	        ops/gpu_bags_test.py ops/table_batch_steps_test.py \
	        variable/variable_test.py variable/pooled_lookups_test.py)

$(OLD_VENV)/.tensorflow: | system
	$(call environment,$(OLD_VENV),$(OLD_TF))

$(OLD_VENV)/.ready: $(OLD_VENV)/.tensorflow
	$(OLD_VENV)/bin/python -m pip install -q hypothesis pytest pytest-xdist \
	    tensorflow-io==0.37.1 "moto[server]"
	@touch $@

# The wheel is installed, not the tree: the library in the tree is built for $(TF). What uses it starts
# in a folder of its own, so that the tree's package is not found there either.
.PHONY: wheel-tf216
wheel-tf216: $(OLD_VENV)/.ready | system
	@mkdir -p build/tf216
	$(OLD_VENV)/bin/python -m pip install -q --no-build-isolation --no-deps --force-reinstall .

.PHONY: test-tf216
test-tf216: wheel-tf216
	cd build/tf216 && $(CURDIR)/$(OLD_VENV)/bin/pytest $(PYTEST_WORKERS) -m "smoke and not slow" \
	    $(CURDIR)/tests

# TFRA's library wants the CUDA symbols of the package tensorflow, and its Python pkg_resources, which
# setuptools 81 has no more.
$(TFRA_VENV)/.ready: | system
	@[ -n "$(PYTHON)" ] || { echo "There is no Python 3.11 or 3.12: install one, or set PYTHON." >&2; exit 1; }
	$(PYTHON) -m venv $(TFRA_VENV)
	$(TFRA_VENV)/bin/python -m pip install -q --upgrade pip "setuptools>=77,<81" wheel
	$(TFRA_VENV)/bin/python -m pip install -q pytest tensorflow==$(OLD_TF) tf_keras==2.16.0 \
	    tensorflow-recommenders-addons==0.8.1
	@touch $@

.PHONY: test-tfra
test-tfra: $(TFRA_VENV)/.ready
	@mkdir -p build/tfra216
	$(TFRA_VENV)/bin/python -m pip install -q --no-build-isolation --no-deps --force-reinstall .
	cd build/tfra216 && $(CURDIR)/$(TFRA_VENV)/bin/pytest $(CURDIR)/tests/tfra/beside_tfra_test.py \
	    $(CURDIR)/tests/tfra/beside_tfra_defects_test.py

.PHONY: sanitize
sanitize: configured
	$(BAZEL) test --config=asan //tests/cc/...
	$(BAZEL) test --config=tsan //tests/cc/...

CC_FILES = $(shell find cc tests/cc benchmarks -name '*.h' -o -name '*.cc' -o -name '*.cu' 2>/dev/null)

.PHONY: lint
lint: $(VENV)/.ready
	$(call packages,clang-format)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	clang-format --dry-run -Werror $(CC_FILES)

.PHONY: format
format: $(VENV)/.ready
	$(call packages,clang-format)
	$(VENV)/bin/ruff format .
	clang-format -i $(CC_FILES)

# The peers are installed once, what is in the tree each time.
.PHONY: bench-environments
bench-environments: | system
	@[ -n "$(PYTHON)" ] || { echo "There is no Python 3.11 or 3.12: install one, or set PYTHON." >&2; exit 1; }
	PYTHON="$(PYTHON)" benchmarks/environments.sh peers
	PYTHON= benchmarks/environments.sh ours

.PHONY: bench bench-quick
bench bench-quick: bench-environments
	.venv/bench216/bin/python benchmarks/run.py $(if $(filter %-quick,$@),--quick) \
	    $(if $(SECTIONS),--sections=$(SECTIONS))

.PHONY: bench-tbe
bench-tbe: bench-environments
	.venv/bench216/bin/python benchmarks/run.py --quick --sections=tbe

.PHONY: tables
tables: $(VENV)/.ready wheel-tf216
	$(VENV)/bin/python tests/tables/optimizers.py --write docs/optimizers.md
	$(VENV)/bin/python tests/tables/save_paths.py --json build/save_paths/$(TF).json
	cd build/tf216 && $(CURDIR)/$(OLD_VENV)/bin/python $(CURDIR)/tests/tables/save_paths.py \
	    --json $(CURDIR)/build/save_paths/$(OLD_TF).json
	$(VENV)/bin/python tests/tables/save_paths.py --write docs/save_paths.md \
	    --merge build/save_paths/$(TF).json build/save_paths/$(OLD_TF).json

# What runs on a GPU without TensorFlow; its variables (NVCC_ARCHS, CUDA_RUN, HKV_DIR) are in that file.
.PHONY: cuda cuda-benchmark cuda-library cuda-test
cuda cuda-benchmark cuda-library cuda-test:
	@$(MAKE) --no-print-directory -f cc/device/Makefile $@

.PHONY: clean
clean:
	-$(BAZEL) clean
	rm -rf build dist *.egg-info .bazelrc.generated .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f tf_embed/_tf_embed.so tf_embed/_tf_embed.json
	find tf_embed tests examples -name __pycache__ -prune -exec rm -rf {} +
