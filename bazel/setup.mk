# SPDX-License-Identifier: Apache-2.0
# System packages, Python environments and the op library. The Makefile includes this.

# The version of TensorFlow that requirements/NAME.in names.
version = $(patsubst tensorflow-cpu==%,%,$(filter tensorflow-cpu==%,$(file < requirements/$(1).in)))

TF := $(call version,tf221)
VENV := .venv/tf221
OLD_TF := $(call version,tf216)
OLD_VENV := .venv/tf216
TFRA_VENV := .venv/tfra216
DOCS_VENV := .venv/docs

# The first Python that TensorFlow $(TF) has wheels for, and that can make an environment.
# TensorFlow $(OLD_TF) has no wheels for Python 3.13, so that comes last.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.10 python3.13 python3; do \
    $$python -c 'import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
        2>/dev/null && echo $$python && break; done)
BAZEL ?= $(or $(shell command -v bazel),$(shell command -v bazelisk),bazel)
# One worker runs a whole file, so what the tests of a file launch or train is done once.
PYTEST_WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder
export BAZEL
export TF_CPP_MIN_LOG_LEVEL ?= 2

# Debian's Bazel, unless there is another one already.
BAZEL_PACKAGES := bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
OTHER_BAZEL = $(if $(wildcard /usr/share/bazel/A-server.jar),,$(filter /%,$(BAZEL)))
PACKAGES = g++ libgtest-dev libhiredis-dev python3 python3-venv $(if $(OTHER_BAZEL),,$(BAZEL_PACKAGES))

# $(call packages,NAMES): installs what neither is a program here nor is known to Debian's dpkg as
# installed. Without apt-get it asks for programs alone: configure.sh looks for compilers, Bazel and
# libraries itself.
define packages
@missing=; \
for name in $(1); do \
  command -v $$name >/dev/null || \
      dpkg-query -W -f '$${db:Status-Status}\n' $$name 2>/dev/null | grep -qx installed || \
      case $$name in \
        g++|lib*|bazel-*|python3*) command -v apt-get >/dev/null && missing="$$missing $$name" ;; \
        *) missing="$$missing $$name" ;; \
      esac; \
done; \
if [ -z "$$missing" ]; then \
  exit 0; \
elif ! command -v apt-get >/dev/null; then \
  echo "Programs are missing, and there is no apt-get: install$$missing" >&2; exit 1; \
elif [ "$$(id -u)" != 0 ]; then \
  echo "Packages are missing: run as root: apt-get install$$missing" >&2; exit 1; \
fi; \
export DEBIAN_FRONTEND=noninteractive; \
echo "Installing system packages:$$missing ..."; \
log=$$(mktemp); \
{ apt-get update -q && apt-get install -qy --no-install-recommends $$missing; } \
    </dev/null >"$$log" 2>&1 || \
    { cat "$$log" >&2; echo "apt-get could not install$$missing: see its errors above" >&2; exit 1; }; \
rm -f "$$log"
endef

# Ends with an error if there is no PYTHON.
python-or-stop = @[ -n "$(PYTHON)" ] || \
    { echo "There is no Python 3.10 to 3.13: install one, or set PYTHON." >&2; exit 1; }

# $(call else-say,WHAT): after a command of pip, the last line if it fails.
else-say = || { echo "pip could not install $(1): see its errors above" >&2; exit 1; }

# $(call environment,FOLDER,NAME): an environment with the packages that requirements/NAME.txt has, of
# these versions and with these hashes: a TensorFlow, and what setup.py and tests need.
define environment
$(python-or-stop)
@echo 'Installing TensorFlow $(call version,$(2)) and the packages of requirements/$(2).txt ...'
@$(PYTHON) -m venv $(1)
@$(1)/bin/python -m pip install -q --require-hashes --only-binary :all: -r requirements/$(2).txt \
    $(call else-say,tensorflow-cpu $(call version,$(2)) and the other packages of requirements/$(2).txt)
@touch $@
endef

.PHONY: system
system:
	$(call packages,$(PACKAGES))

$(VENV)/.tensorflow: requirements/tf221.txt | system
	$(call environment,$(VENV),tf221)

# Writes the newest versions of all packages, and the hashes of their files, to requirements/.
LOCK_VENV := build/lock
LOCK = $(LOCK_VENV)/bin/uv pip compile -q --upgrade --universal --python-version 3.10 --generate-hashes \
    --no-header --no-emit-index-url --no-annotate
.PHONY: lock
lock: | system
	$(PYTHON) -m venv $(LOCK_VENV)
	@$(LOCK_VENV)/bin/python -m pip install -q uv $(call else-say,uv)
	$(LOCK) --extra dev pyproject.toml requirements/tf221.in -o $(LOCK_VENV)/tf221.txt >/dev/null
	$(LOCK) requirements/tf216.in -o $(LOCK_VENV)/tf216.txt >/dev/null
	@for name in tf221 tf216; do \
	  { echo '# SPDX-License-Identifier: Apache-2.0'; \
	    echo "# Made by \`make lock\` of $$name.in: every package with its version and the hashes of its files."; \
	    cat $(LOCK_VENV)/$$name.txt; } > requirements/$$name.txt; \
	done

.PHONY: library
library: $(VENV)/.tensorflow | system
	@$(VENV)/bin/python setup.py -q build_library

# Bazel's tests need no TensorFlow, only configure.sh's answers.
.PHONY: configured
configured: $(VENV)/.tensorflow | system
	@PYTHON=$(VENV)/bin/python ./configure.sh

# setuptools warns at every editable installation that a folder of the same name may hide it.
EDITABLE = PYTHONWARNINGS='ignore:Editable installation' \
    $(VENV)/bin/python -m pip install -q --no-build-isolation

$(VENV)/.ready: pyproject.toml setup.py $(VENV)/.tensorflow | library
	@echo 'Installing tf_embed, editable, into $(VENV) ...'
	@$(EDITABLE) --no-deps -e .
	@touch $@

$(VENV)/.demo: $(VENV)/.ready
	@echo "Installing the demo's packages ..."
	@$(EDITABLE) -e '.[demo]' \
	    $(call else-say,the extra demo of pyproject.toml: matplotlib and pandas and others)
	@touch $@
