# The commands of a contributor; `make` lists them. All prepare .venv from the locked requirements first.
PYTHON ?= python3.11
# Of several on the PATH the first one whose build is optimised, as a distribution's is: it is a third faster, and so are
# the tests (docs/operations.md).
PYTHON := $(or $(shell for one in $$(which -a $(PYTHON) 2>/dev/null); do $$one -c 'import ensurepip, venv' 2>/dev/null && $$one -m tools.optimised && echo $$one && break; done),$(shell command -v $(PYTHON) 2>/dev/null),python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
JOBS ?= 5
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
IMAGE := txbridge/worker:$(VERSION)

# Each of the many processes of the tests would compile all of its modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check format quick test test-long test-failed test-containers demo bench docs release-check clean

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 24
	@echo '  And tests/laboratory.mk:' $$(sed -n 's/^\([a-z-]*\):.*## .*/\1/p' tests/laboratory.mk)

setup: $(STAMP) ## .venv, from requirements/lock.txt

# The build tools come first: some packages are published as source only and must not fetch unlocked build tools.
$(STAMP): requirements/lock.txt requirements/build.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "txbridge needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar=off --no-build-isolation --require-hashes -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	touch $@

check: setup ## ruff, mypy, spelling, the linter of prose, and the figures of the house
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell --ignore-words-list unknow README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs changes
	$(BIN)/python -m tools.prose
	$(BIN)/python -m tools.house

format: setup ## formats the code, and repairs what ruff can repair
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

quick: setup check ## what tells most in little more than a minute, without Kafka and Spark
	HYPOTHESIS_PROFILE=small $(PYTEST) tests/unit tests/property -m "not spark and not long" --numprocesses $(JOBS) --dist loadfile
	$(BIN)/python -m tests.simulator --seeds 300

# Most tests wait for a Kafka or a worker most of the time, and each process has a Kafka of its own. Of two processors four
# use three quarters, and five use seven eighths.
test: setup check ## the gate: all tests but the long ones, in 15 minutes; JOBS=0 runs one after the other
	$(PYTEST) tests -m "not long" --numprocesses $(JOBS) --dist loadfile

# They start many programs each: five at once gave two processors a load of 40 to 50, and a broker stood still for 8 s.
test-long: JOBS := $(if $(filter file,$(origin JOBS)),3,$(JOBS))
test-long: setup ## what the gate leaves out: more rows of its matrices, more seeds, every planted defect
	$(PYTEST) tests -m long --numprocesses $(JOBS) --dist loadfile

test-failed: ## the tests that failed in the last run, one after the other
	$(PYTEST) tests --last-failed --last-failed-no-failures none

# Ryuk, which removes the containers of tests that were killed, is one image more; TESTCONTAINERS_RYUK_DISABLED=false brings it.
test-containers: export TESTCONTAINERS_RYUK_DISABLED ?= true
test-containers: setup ## the images and examples/shop, in containers; needs Docker
	@docker info > /dev/null || { echo 'NO CONTAINER WAS TESTED: Docker does not answer (above). Start it, or install it (Debian: docker.io)' >&2; exit 3; }
	$(MAKE) image image-answer-checks image-rocketmq
	$(PYTEST) tests/containers

demo: setup ## 336,776 flights, a worker killed on the way, and the audit
	$(BIN)/txbridge demo

# A JDK, and 98 MB of RocketMQ's jars the first time. `make bench ARGS=--quick`, or one of them: `make bench ARGS=pending`.
bench: setup ## all measurements, as a table and build/bench/report.json
	$(BIN)/python -m tests.bench $(ARGS)

# Strict about links; it loads nothing from another host. Not --quiet: mkdocs counts the warnings that it prints, and
# --strict fails for those alone.
docs: setup build/docs/venv/.ready ## the site of docs/, in build/docs/site/index.html
	NO_MKDOCS_2_WARNING=1 build/docs/venv/bin/mkdocs build --strict

# Java, for the quickstart. `make release-check ARGS=--all` fails if a version of Python is not on the PATH.
release-check: build/release/venv/.ready ## builds what would be published, installs it and runs the quickstart with it
	build/release/venv/bin/python -m tools.release_check $(ARGS)

clean: ## removes .venv and build
	rm -rf build .venv

# Tools that need other packages than what runs and tests txbridge have environments of their own.
build/%/venv/.ready: requirements/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

include tests/laboratory.mk
