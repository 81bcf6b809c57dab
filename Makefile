# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` do all the set-up: system packages (Debian, as root), an environment
# in .venv, the op library. PYTHON, BAZEL, CC, NVCC, TF_EMBED_CUDA and TF_EMBED_CACHE are as in
# configure.sh.

.DEFAULT_GOAL := help
include bazel/setup.mk tests/tests.mk benchmarks/benchmarks.mk release/release.mk

.PHONY: help
help:
	@echo 'make demo             train, checkpoint, export and serve a model on real flights'
	@echo 'make test-quick       the smoke tests of each room, while you work'
	@echo 'make test             the C++ tests and each function of the Python tests, on TensorFlow $(TF)'
	@echo 'make test-nightly     everything there is: slow cases, whole grids, processes, campaigns, sanitizers, TensorFlow $(OLD_TF)'
	@echo 'make lint             ruff, mypy, clang-format'
	@echo 'make docs             the site, from docs/ and docstrings, into build/docs'
	@echo 'make bench-quick      what the goals are about, in less than ten minutes'
	@echo 'make help-all         all targets'

.PHONY: help-all
help-all: help
	@echo 'make library          the op library alone, into tf_embed/, with all set-up'
	@echo 'make demo-workers     the demo by two processes, whose tables are sharded over them'
	@echo 'make demo-servers     the demo by workers in step, and by workers with parameter servers'
	@echo 'make examples         the other examples; MovieLens is downloaded, or read from DATA=folder'
	@echo 'make test-gpu         tests of tables on a GPU, with the host for a GPU'
	@echo 'make test-emulated    the tests of one process, with the host for a GPU as the default device'
	@echo 'make test-aarch64     C++ tests of the core on 64-bit ARM, cross-compiled, under an emulator'
	@echo 'make test-processes   workers, servers, Redis and kills'
	@echo 'make test-tf216       build for TensorFlow $(OLD_TF) and run the smoke tests there'
	@echo 'make test-tfra        the same calls of TFRA and of tf_embed, side by side'
	@echo 'make test-locks       the C++ tests and many threads of Python, with checks of the order of locks'
	@echo 'make fuzz             bytes of all kinds for each reader, by libFuzzer; SECONDS=60 for all together'
	@echo 'make proof            models of protocols between threads, explored as a whole'
	@echo 'make campaigns        random and hostile calls, threads and leaks, for long'
	@echo 'make torture          kills of processes and crashes of the machine; a part of make campaigns'
	@echo 'make corruption       damaged files of each format; a part of make campaigns'
	@echo 'make load             tables under load for ten minutes; SECONDS=28800 for eight hours'
	@echo 'make faults           calls and allocations that fail, one processor, clocks that jump; a part of make campaigns'
	@echo 'make parity-workers   tables on 1 to 4 workers: the same rows, other numbers of workers, kills'
	@echo 'make sanitize         the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer'
	@echo 'make thread-safety    which lock guards what, checked by clang'
	@echo 'make pictures         the plots of benchmarks/README.md, from its tables, and the rooms of the code'
	@echo 'make format           ruff and clang-format, rewriting files'
	@echo 'make bench            tf_embed beside its peers; SECTIONS=lookup,adam for some of it'
	@echo 'make bench-tbe        many tables in one layer, beside those of FBGEMM'
	@echo 'make bench-keras      steps of fit, beside models with keras.layers.Embedding'
	@echo 'make bench-latency    percentiles of lookups, alone and beside training, beside those of TFRA'
	@echo 'make bench-tiers      tables larger than memory; FOLDER=folder is on the disk to measure'
	@echo 'make bench-workers    tables on 1, 2 and 4 workers of this machine'
	@echo 'make bench-static     size and latency of models that are served without tf_embed'
	@echo 'make bench-freshness  how soon a serving process answers with what was trained'
	@echo 'make bench-servers    tables on two parameter servers of this machine'
	@echo 'make tables           the tables of docs/: what works, tried'
	@echo 'make cuda             compile the GPU table with nvcc, for sm_80, sm_90 and PTX; needs no GPU'
	@echo 'make cuda-test        build the tests of a table on a GPU, without TensorFlow, and run them on one'
	@echo 'make cuda-benchmark   how fast it is on this GPU; HKV_DIR=checkout puts HierarchicalKV beside it'
	@echo 'make lock             the newest versions of all packages, with hashes, to requirements/'
	@echo 'make wheels           a wheel for each TensorFlow from 2.16 to 2.21, in dist/, each tried'
	@echo 'make release-check    what a release demands: a clean tree, the changelog, tests, wheels'
	@echo 'make clean            remove what was built; keeps .venv and the build cache'

.PHONY: demo
demo: library $(VENV)/.demo
	@$(VENV)/bin/python examples/flights.py

.PHONY: demo-workers
demo-workers: library $(VENV)/.demo
	$(VENV)/bin/python examples/distributed/flights_workers.py

.PHONY: demo-servers
demo-servers: library $(VENV)/.demo
	$(VENV)/bin/python examples/distributed/flights_servers.py

.PHONY: examples
examples: library $(VENV)/.demo
	$(VENV)/bin/python examples/custom_loop.py
	$(VENV)/bin/python examples/stream_parquet.py
	$(VENV)/bin/python examples/kill_and_resume.py
	$(VENV)/bin/python examples/larger_than_memory.py --compare
	$(VENV)/bin/python examples/movielens.py $(if $(DATA),--data="$(DATA)")

CC_FILES = $(shell find cc tests/campaigns tests/cc benchmarks -name '*.h' -o -name '*.cc' -o -name '*.cu' 2>/dev/null)

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

# The site needs no TensorFlow: docstrings are read, not imported.
$(DOCS_VENV)/.ready: docs/requirements.txt | system
	$(python-or-stop)
	$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install -q -r docs/requirements.txt \
	    $(call else-say,mkdocs-material and the other packages of docs/requirements.txt)
	@touch $@

.PHONY: docs
docs: $(DOCS_VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@echo 'build/docs/index.html'

# The other pictures are drawn by hand. matplotlib draws the plots.
.PHONY: pictures
pictures: library $(VENV)/.demo
	$(VENV)/bin/python benchmarks/plots.py
	$(VENV)/bin/python tests/release/architecture_test.py --write

# What runs on a GPU without TensorFlow; its variables (NVCC_ARCHS, CUDA_RUN, HKV_DIR) are in that file.
.PHONY: cuda cuda-benchmark cuda-test
cuda cuda-benchmark cuda-test:
	@$(MAKE) --no-print-directory -f cc/stores/device/Makefile $@

.PHONY: clean
clean:
	-$(BAZEL) clean
	rm -rf build dist *.egg-info .bazelrc.generated .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f tf_embed/_tf_embed.so tf_embed/_tf_embed.json tf_embed/libtf_embed_redis.so
	find tf_embed tests examples -name __pycache__ -prune -exec rm -rf {} +
