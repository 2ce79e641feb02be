# Each target sets up what it needs: the environment is made once, from the lock file, into .venv.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
READY := .venv/ready
BINDINGS := $(patsubst tests/%.lock,.venv/%,$(wildcard tests/bindings/*.lock))
PYTHON ?= python3
BUILDERS := setuptools setuptools-scm vcs-versioning packaging
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help repro nightly fleet test test-lowest test-newest torture verify-gpu verify-documents check graph notebook lock audit clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

repro: $(READY)  ## run the pipeline; RECIPE=recipes/NAME.yaml changes params.yaml first
	@python -m enginewright.pipeline $(if $(RECIPE),"$(RECIPE)")
	dvc repro

# Status 4 means that the machine was too noisy to decide. That is no reason for an alarm, and `make` cannot pass it on.
nightly: $(READY)  ## one nightly run: measure anew, compare with the last good run, record it in history/
	@python -m enginewright.pipeline
	@python -m enginewright.nightly || [ $$? -eq 4 ]

# Status 5 means that a target failed: the others are on the page.
fleet: $(READY)  ## build, validate and race on all machines of fleet.yaml, and make one page
	enginewright fleet

test: $(READY) $(BINDINGS)  ## run the tests, two files at a time
	@# Keep what Python compiles, also where a variable says otherwise: else each of a thousand processes compiles anew.
	env -u PYTHONDONTWRITEBYTECODE pytest -n 2 --dist loadfile --no-loadscope-reorder

# The light part on Python 3.10 and on one from 3.13 on, if they are there, and the default pipeline, made small.
test-lowest: $(READY)  ## try the lowest versions that pyproject.toml allows
	RESOLUTION=lowest-direct pytest -s tests/repository/ranges.py

test-newest: $(READY)  ## try the newest
	RESOLUTION=highest pytest -s tests/repository/ranges.py

verify-gpu: $(READY)  ## on a machine with an NVIDIA GPU: check what only a GPU can show
	pytest -x -s tests/verify_gpu/verify_{engines,machine,bundles,commands,plugins,faults}.py

torture: $(READY)  ## for about four hours: damaged files, no network, two at once, several hosts, other places, a full disk, mutants, 450 kills
	python tests/torture/fuzz.py --count 145
	python tests/torture/offline.py
	python tests/torture/two.py
	python tests/torture/hosts.py
	python tests/torture/elsewhere.py
	python tests/torture/synced.py
	python tests/torture/starved.py
	python tests/torture/mutants.py --mutants 25
	python tests/torture/kills.py --kills 300
	python tests/torture/kills.py --kills 50 --command nightly bundle compare

audit:  ## ask whether a known hole is in a package of requirements.lock; needs the network
	@$(PYTHON) -m venv .audit && .audit/bin/pip install --quiet pip-audit==2.10.1
	@.audit/bin/pip-audit --require-hashes --disable-pip --requirement requirements.lock

verify-documents: $(READY) $(BINDINGS)  ## run the commands of README and docs, the recipes and the benchmarks, shortened to minutes
	pytest tests/documents/at_length.py tests/repository/first_report.py

check: $(READY)  ## lint, format and types
	ruff check .
	ruff format --check .
	mypy

graph: $(READY)  ## draw dvc.yaml's graph into docs/explanation/architecture.md
	python docs/graph.py

notebook: $(READY)  ## run notebooks/tour.ipynb and keep what it shows
	python notebooks/run.py

lock: $(READY)  ## resolve pyproject.toml again into requirements.lock
	uv pip compile pyproject.toml --extra pipeline --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet --output-file requirements.lock

clean:  ## remove the environment, keep results
	rm -rf .venv

# Take a Python that really starts, as version managers leave shims that do not, in a version that all packages support.
$(READY): requirements.lock pyproject.toml
	@for name in python3.12 python3.11 python3.13 python3.14 python3; do \
		if $$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then found=$$name; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then echo "Enginewright needs Python 3.11 or later with its venv module" >&2; exit 1; fi; \
	.venv/bin/python -m pip --version >/dev/null 2>&1 || $$found -m venv --clear .venv
	@echo "installing the locked packages into .venv: 6 GB, mostly torch's CUDA libraries, in 2 to 5 minutes"
	@# Install the build tools first, so that packages that come as source are built with locked versions, too.
	@for name in $(BUILDERS); do sed -n "/^$$name==/,/[^\\]$$/p" requirements.lock; done > .venv/builders.lock
	@python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r .venv/builders.lock
	@# pip says nothing while it installs what it has: count that.
	@count() { ls -d .venv/lib/python*/site-packages/*.dist-info | wc -l; }; before=$$(count); \
	while sleep 10; do \
		now=$$(count); [ $$now = $$before ] || echo "installed $$now packages"; before=$$now; \
	done & trap "kill $$!" EXIT; \
	python -m pip install --disable-pip-version-check --require-hashes --no-build-isolation -r requirements.lock | \
		sed -uEn 's/^ *((Downloading|Using cached|Installing).{0,80}).*/\1/p'
	@python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

# The tests check our calls against NVIDIA's real Python bindings of several TensorRT versions, each in its own folder.
# Without TensorRT's libraries they are 1.3 MB each. The tests check a bundle's configuration against the definitions in
# Triton's client, which is only read, as it needs older libraries than ours to run.
$(BINDINGS): .venv/bindings/%: tests/bindings/%.lock $(READY)
	@rm -rf $@
	@python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $@ -r $<
	@touch $@
