# SPDX-License-Identifier: Apache-2.0
# The tests, by tier, and what stands beside them. The Makefile includes this.

# A server that tests start, and a checker of models.
.PHONY: test-system proof-system
test-system: | system
	$(call packages,redis-server)
proof-system: | system
	$(call packages,spin)

PYTEST = $(VENV)/bin/pytest $(PYTEST_WORKERS) $(PYTEST_ARGS)
# With these, TensorFlow takes the host for a GPU: tests/cc/gpu/fake_gpu_plugin.cc.
EMULATED_GPU = CUDA_VISIBLE_DEVICES= TF_EMBED_EMULATE_GPU=1 \
    TF_PLUGGABLE_DEVICE_LIBRARY_PATH="$$($(BAZEL) info bazel-bin)/tests/cc/gpu/fake_gpu_plugin.so"
TWO_EMULATED_GPUS = TF_EMBED_EMULATED_GPUS=2 $(EMULATED_GPU)

.PHONY: test-quick
test-quick: library $(VENV)/.ready
	$(PYTEST) --tier=quick

# The C++ tests are compiled once, with checks of the order of locks and assertions; long ones take a
# few of their cases. The Python tests run the optimized code. Models of protocols are checked at night.
.PHONY: test
test: test-system configured library $(VENV)/.ready
	$(BAZEL) test --config=locks --test_env=TF_EMBED_TEST_FEW_CASES=1 //tests/cc/...
	$(PYTEST) --tier=default
	$(BAZEL) build //tests/cc/gpu:fake_gpu_plugin.so
	$(EMULATED_GPU) $(PYTEST) --tier=default tests/python/table/gpu_tables_test.py \
	    tests/tbe/table_batched_gpu_caches_test.py
	$(TWO_EMULATED_GPUS) $(PYTEST) -m smoke tests/python/table/several_gpus_test.py

# Everything. It also writes tests/slow_cases.txt, which the two above read.
.PHONY: test-nightly
test-nightly: test-system proof-system configured library $(VENV)/.ready
	$(BAZEL) test //tests/cc/... //benchmarks/...
	$(PYTEST) --write-slow-cases
	$(MAKE) thread-safety test-gpu test-emulated test-locks sanitize test-tf216

# The tests of one process, with what TensorFlow takes for a GPU and is the host as the default device.
.PHONY: test-emulated
test-emulated: configured library $(VENV)/.ready
	$(BAZEL) build //tests/cc/gpu:fake_gpu_plugin.so
	$(EMULATED_GPU) $(PYTEST) \
	    $(addprefix tests/,docs integration one_embedding python sok tbe tfra)

# Tables on what TensorFlow takes for a GPU and is the host. The files after those of GPUs know nothing
# of them.
.PHONY: test-gpu
test-gpu: configured library $(VENV)/.ready
	$(BAZEL) build //tests/cc/gpu:fake_gpu_plugin.so
	$(EMULATED_GPU) $(PYTEST) \
	    $(addprefix tests/python/,table/gpu_tables_test.py table/gpu_tiers_test.py table/storage_test.py \
	        ops/gpu_bags_test.py ops/table_batch_steps_test.py \
	        variable/variable_test.py variable/pooled_lookups_test.py snapshots) \
	    tests/tbe/table_batched_gpu_caches_test.py tests/one_embedding/multi_table_gpu_stores_test.py
	$(TWO_EMULATED_GPUS) $(PYTEST) tests/python/table/several_gpus_test.py

# Tests that start workers, servers and Redis: after a change of the code that these run.
.PHONY: test-processes
test-processes: test-system library $(VENV)/.ready
	$(PYTEST) tests/processes

# The package with a library that checks the order of locks, for the CPU alone: nvcc does not get
# the options of the other compiler.
LOCKS := build/locks
.PHONY: test-locks
test-locks: test-system configured $(VENV)/.ready
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
	$(MAKE) torture corruption faults
	$(VENV)/bin/python tests/campaigns/raw_ops.py --calls=100000
	$(VENV)/bin/python tests/campaigns/hostile_calls.py
	$(VENV)/bin/python tests/campaigns/leaks.py --cycles=2000
	$(VENV)/bin/python tests/campaigns/variable_states.py --seconds=3600
	$(VENV)/bin/python tests/campaigns/saves_beside_steps.py --seconds=600
	$(MAKE) fuzz SECONDS=3600
	$(MAKE) load SECONDS=28800
	$(MAKE) parity-workers

# Kills of processes, and crashes of the machine.
.PHONY: torture
torture: library $(VENV)/.ready
	$(VENV)/bin/python tests/campaigns/kill_tiers.py --count=300
	$(VENV)/bin/python tests/campaigns/kill_snapshots.py --count=1000
	$(VENV)/bin/python tests/campaigns/kill_publications.py --count=1000
	$(VENV)/bin/python tests/campaigns/server_kills.py --count=100
	$(VENV)/bin/python tests/campaigns/power_cuts.py --count=1000

# Threads that read, write, evict and save tables; SECONDS=28800 is the form of eight hours.
.PHONY: load
load: SECONDS := 600
load: library $(VENV)/.ready
	$(VENV)/bin/python tests/campaigns/load.py --seconds=$(SECONDS)

# Damaged files of each format.
.PHONY: corruption
corruption: library $(VENV)/.ready
	$(VENV)/bin/python tests/campaigns/corruption.py --count=1000

CONTRACT := $(addprefix //tests/cc/,core/store/... tiers/... stores/tiered/...)

# Calls of the file system and allocations that fail; the contract of tables on one processor, and
# under a clock that jumps by up to three years every 64 reads.
.PHONY: faults
faults: configured library $(VENV)/.ready
	$(BAZEL) test //tests/cc/core/store:allocation_failure_test //tests/cc/tiers/disk:disk_tier_faults_test
	$(BAZEL) test --run_under="taskset -c 0" --local_test_jobs=1 $(CONTRACT)
	@mkdir -p build
	$(or $(CXX),g++) -std=c++17 -O2 -shared -fPIC -o build/jumping_clock.so \
	    tests/campaigns/jumping_clock.cc -ldl
	$(BAZEL) test --run_under="env LD_PRELOAD=$(CURDIR)/build/jumping_clock.so \
	    JUMPING_CLOCK_SECONDS=100000000" $(CONTRACT)
	$(VENV)/bin/python tests/campaigns/file_faults.py
	$(VENV)/bin/python tests/campaigns/surroundings.py

# Tables on 1, 2, 3 and 4 workers of this machine, on real data; DATA=folder has u.data of MovieLens.
.PHONY: parity-workers
parity-workers: library $(VENV)/.demo
	$(VENV)/bin/python tests/campaigns/worker_parity.py $(if $(DATA),--movielens="$(DATA)")
	$(VENV)/bin/python tests/campaigns/worker_chain.py
	$(VENV)/bin/python tests/campaigns/worker_kills.py --kills=10

$(OLD_VENV)/.ready: requirements/tf216.txt | system
	$(call environment,$(OLD_VENV),tf216)

# The wheel is installed, not the tree: the library in the tree is built for $(TF). What uses it starts
# in a folder of its own, so that the tree's package is not found there either.
.PHONY: wheel-tf216
wheel-tf216: $(OLD_VENV)/.ready | system
	@mkdir -p build/tf216
	$(OLD_VENV)/bin/python -m pip install -q --no-build-isolation --no-deps --force-reinstall .

.PHONY: test-tf216
test-tf216: wheel-tf216
	cd build/tf216 && $(CURDIR)/$(OLD_VENV)/bin/pytest $(PYTEST_WORKERS) --tier=default -m smoke \
	    $(CURDIR)/tests

# TFRA's library wants the CUDA symbols of the package tensorflow, and its Python pkg_resources, which
# setuptools 81 has no more.
$(TFRA_VENV)/.ready: | system
	$(python-or-stop)
	$(PYTHON) -m venv $(TFRA_VENV)
	@$(TFRA_VENV)/bin/python -m pip install -q --upgrade pip "setuptools>=77,<81" wheel \
	    $(call else-say,pip setuptools wheel)
	@$(TFRA_VENV)/bin/python -m pip install -q pytest tensorflow==$(OLD_TF) tf_keras==2.16.0 \
	    tensorflow-recommenders-addons==0.8.1 \
	    $(call else-say,pytest tensorflow==$(OLD_TF) tf_keras tensorflow-recommenders-addons)
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

# Tests of the core on 64-bit ARM, by a cross compiler and an emulator, which reorders less than the
# processor may. QEMU 7 keeps some memory of each thread that has ended, so the tests of stores that start
# very many threads do not fit. Bazel makes gcc look for a linker beside the compiler first: a link keeps
# it out of /usr/bin, where this machine's linker is.
AARCH64 := build/aarch64
AARCH64_TESTS := $(addsuffix /...,base batch exchange files index loops policy pooling rows rules) \
    $(patsubst %,store:%_test,allocation_failure evicted_rows store_concurrency store_locks store_memory \
        store_narrow_slots store_pass)
.PHONY: test-aarch64
test-aarch64: $(VENV)/.tensorflow | system
	$(call packages,g++-aarch64-linux-gnu qemu-user-static)
	@mkdir -p $(AARCH64) && ln -sf "$$(command -v aarch64-linux-gnu-gcc)" $(AARCH64)/gcc
	@CC=$(CURDIR)/$(AARCH64)/gcc HIREDIS= PYTHON=$(VENV)/bin/python ./configure.sh --cpu --output=$(AARCH64)/bazelrc
	$(BAZEL) --bazelrc=$(AARCH64)/bazelrc test --config=aarch64 --test_env=TF_EMBED_TEST_FEW_CASES=1 \
	    $(addprefix //tests/cc/core/,$(AARCH64_TESTS))

# Which lock guards what, by clang and the annotated mutexes of libc++. store_locks.cc is left out: one
# function takes its locks and another gives them back. So is the client of Redis, a library without
# the core's headers.
.PHONY: thread-safety
thread-safety: | system
	$(call packages,clang libc++-dev)
	clang++ -fsyntax-only -std=c++17 -stdlib=libc++ -D_LIBCPP_ENABLE_THREAD_SAFETY_ANNOTATIONS \
	    -Werror=thread-safety -I. \
	    $(filter-out cc/stores/redis/client/% %/store_locks.cc,$(shell find cc/core cc/tiers cc/stores -name '*.cc'))

# Each reader of bytes, fed by libFuzzer; all together for so many seconds. clang builds the programs,
# and the compiler of everything else those that write the seeds.
SECONDS ?= 60
FUZZ := build/fuzz
FUZZERS := $(patsubst tests/cc/fuzz/%_fuzzer.cc,%,$(wildcard tests/cc/fuzz/*_fuzzer.cc))
.PHONY: fuzz
fuzz: configured $(VENV)/.ready
	$(call packages,clang libclang-rt-dev)
	@rm -rf $(FUZZ)/programs $(FUZZ)/replays && mkdir -p $(FUZZ)/programs $(FUZZ)/replays
	$(BAZEL) build $(patsubst %,//tests/cc/fuzz:%_replay_test,$(filter-out planted,$(FUZZERS)))
	@cd "$$($(BAZEL) info bazel-bin)" && cp --parents -L tests/cc/fuzz/*_replay_test \
	    cc/stores/redis/client/libtf_embed_redis.so $(CURDIR)/$(FUZZ)/replays
	@CC=clang PYTHON=$(VENV)/bin/python ./configure.sh --cpu --output=$(FUZZ)/bazelrc
	$(BAZEL) --bazelrc=$(FUZZ)/bazelrc build --config=fuzz $(patsubst %,//tests/cc/fuzz:%_fuzzer,$(FUZZERS))
	@cd "$$($(BAZEL) --bazelrc=$(FUZZ)/bazelrc info --config=fuzz bazel-bin)" && cp --parents -L \
	    tests/cc/fuzz/*_fuzzer cc/stores/redis/client/libtf_embed_redis.so $(CURDIR)/$(FUZZ)/programs
	$(VENV)/bin/python tests/campaigns/fuzz.py --programs=$(FUZZ)/programs \
	    --replays=$(FUZZ)/replays --seconds=$(SECONDS) $(FUZZ_ARGS)

# Models of protocols between threads, explored as a whole.
.PHONY: proof
proof: proof-system configured
	$(BAZEL) test --test_output=all --nocache_test_results //tests/cc/models/...

.PHONY: tables
tables: $(VENV)/.ready wheel-tf216
	$(VENV)/bin/python tests/tables/optimizers.py --write docs/reference/optimizers.md
	$(VENV)/bin/python tests/tables/save_paths.py --json build/save_paths/$(TF).json
	cd build/tf216 && $(CURDIR)/$(OLD_VENV)/bin/python $(CURDIR)/tests/tables/save_paths.py \
	    --json $(CURDIR)/build/save_paths/$(OLD_TF).json
	$(VENV)/bin/python tests/tables/save_paths.py --write docs/reference/save_paths.md \
	    --merge build/save_paths/$(TF).json build/save_paths/$(OLD_TF).json
