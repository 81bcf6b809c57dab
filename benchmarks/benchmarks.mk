# SPDX-License-Identifier: Apache-2.0
# tf_embed beside its peers. The Makefile includes this.

# The peers are installed once, what is in the tree each time.
# fio and RocksDB are peers of tables over disk. Without them their figures are left out.
.PHONY: bench-packages
bench-packages:
	$(call packages,fio librocksdb-dev)

.PHONY: bench-environments
bench-environments: | system
	-@$(MAKE) --no-print-directory bench-packages
	$(python-or-stop)
	PYTHON="$(PYTHON)" benchmarks/environments.sh peers
	PYTHON= benchmarks/environments.sh ours

.PHONY: bench bench-quick
bench bench-quick: bench-environments
	.venv/bench216/bin/python benchmarks/run.py $(if $(filter %-quick,$@),--quick) \
	    $(if $(SECTIONS),--sections=$(SECTIONS)) $(if $(FOLDER),--folder="$(FOLDER)")

.PHONY: bench-tbe
bench-tbe: bench-environments
	.venv/bench216/bin/python benchmarks/run.py --quick --sections=tbe

.PHONY: bench-latency
bench-latency: bench-environments
	.venv/bench216/bin/python benchmarks/run.py --sections=latency

# FOLDER is on the disk to measure.
.PHONY: bench-tiers
bench-tiers: bench-environments
	.venv/bench216/bin/python benchmarks/run.py --sections=tiers $(if $(FOLDER),--folder="$(FOLDER)")

.PHONY: bench-redis
bench-redis: test-system bench-environments
	.venv/bench216/bin/python benchmarks/redis_tables.py

.PHONY: bench-workers
bench-workers: library $(VENV)/.ready
	$(VENV)/bin/python benchmarks/workers.py

.PHONY: bench-keras
bench-keras: library $(VENV)/.ready
	$(VENV)/bin/python benchmarks/keras_fit.py --batch=2048
	$(VENV)/bin/python benchmarks/keras_fit.py --batch=256

# FOLDER is on the disk by which rows go from training to serving.
.PHONY: bench-freshness
bench-freshness: library $(VENV)/.ready
	$(VENV)/bin/python benchmarks/freshness.py $(if $(FOLDER),"$(FOLDER)")
	$(VENV)/bin/python benchmarks/freshness.py --every=0.2 --poll=0.02 $(if $(FOLDER),"$(FOLDER)")

.PHONY: bench-servers
bench-servers: library $(VENV)/.ready
	$(VENV)/bin/python benchmarks/servers.py

.PHONY: bench-static
bench-static: library $(VENV)/.ready
	$(VENV)/bin/python benchmarks/static_export.py
