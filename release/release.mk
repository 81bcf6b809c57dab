# SPDX-License-Identifier: Apache-2.0
# Wheels, and what a release demands. The Makefile includes this.

# TENSORFLOWS="2.20.0 2.21.0" makes some of them.
.PHONY: wheels
wheels: | system
	$(python-or-stop)
	$(PYTHON) release/wheels.py $(if $(TENSORFLOWS),--tensorflow $(TENSORFLOWS))

# Quick checks come first, so that a tree that is not clean costs no hour of tests.
.PHONY: release-check
release-check:
	$(python-or-stop)
	$(PYTHON) release/check.py tree
	$(MAKE) lint
	.ci/run
	$(MAKE) wheels
	$(PYTHON) release/check.py tree wheels
