# Everything a newcomer needs: `make demo`, `make quick` and `make test`. All prepare .venv from the locked requirements first.
PYTHON ?= python3.11
# Of several on the PATH the first one whose build is optimised, as a distribution's is: it is a third faster, and so are
# the tests (docs/operations.md).
PYTHON := $(or $(shell for one in $$(which -a $(PYTHON) 2>/dev/null); do $$one -c 'import ensurepip, venv' 2>/dev/null && $$one -m tools.optimised && echo $$one && break; done),$(shell command -v $(PYTHON) 2>/dev/null),python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
JOBS ?= 4
SPARK ?= 4.1.1
DJANGO ?= 6.1.3
# Django 6 needs it.
PYTHON312 ?= python3.12
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
IMAGE := txbridge/worker:$(VERSION)
SOURCES := pyproject.toml $(shell find txbridge spark/txbridge_audit connectors -name '*.py')
MUTATION := build/mutation/venv
DOCS := build/docs/venv
RELEASE := build/release/venv

# Each of the many processes of the tests would compile all of its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup check format lock changelog demo quick test test-long test-containers image images compose chaos corruption audit-spark django differential bench broken mutation docs clean

setup: $(STAMP)

# The build tools come first: some packages are published as source only and must not fetch unlocked build tools.
$(STAMP): requirements/lock.txt requirements/build.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "txbridge needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar=off --no-build-isolation --require-hashes -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell --ignore-words-list unknow README.md CONTRIBUTING.md docs changes
	$(BIN)/python -m tools.prose

format: setup
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Needs uv. No index address is written: the lock file works with any registry.
lock:
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --group build --group dev --extra demo --extra django --extra otel --extra rocketmq --extra sqlalchemy --extra testing pyproject.toml -o requirements/lock.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header -c requirements/lock.txt requirements/build.in -o requirements/build.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --group mutation -o requirements/mutation.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --group docs -o requirements/docs.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --group release -o requirements/release.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header -c requirements/lock.txt --extra worker pyproject.toml -o requirements/worker.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header -c requirements/lock.txt --extra answer-checks --group image pyproject.toml -o requirements/answer-checks.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header -c requirements/lock.txt --extra rocketmq pyproject.toml -o requirements/rocketmq.txt
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header -c requirements/lock.txt --extra demo pyproject.toml -o requirements/demo.txt

# What is in changes/ moves into CHANGELOG.md, under the version of pyproject.toml.
changelog: $(RELEASE)/.ready
	$(RELEASE)/bin/towncrier build --yes --version $(VERSION)

# An environment of its own: nothing that runs or tests txbridge needs these packages.
$(RELEASE)/.ready: requirements/release.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/release.txt
	touch $@

demo: setup
	$(BIN)/txbridge demo

# What tells most in little more than a minute, without Kafka and Spark.
quick: setup check
	HYPOTHESIS_PROFILE=small $(PYTEST) tests/unit tests/property -m "not spark and not long" --numprocesses $(JOBS) --dist loadfile
	$(BIN)/python -m txbridge.testing.simulator --seeds 300

# The gate. Most tests wait for a Kafka or a worker most of the time: two processes for each processor, each with a Kafka
# of its own. `make test JOBS=0` runs one test after the other.
test: setup check
	$(PYTEST) tests -m "not long" --numprocesses $(JOBS) --dist loadfile

# The tests that `make test` leaves out: more rows of its matrices, more seeds, every planted defect.
test-long: setup
	$(PYTEST) tests -m long --numprocesses $(JOBS) --dist loadfile

# The images, and the example's tests, in containers: needs Docker and the images that these begin with, and says so loudly without. Ryuk,
# which removes the containers of tests that were killed, is one image more; TESTCONTAINERS_RYUK_DISABLED=false brings it.
test-containers: export TESTCONTAINERS_RYUK_DISABLED ?= true
test-containers: setup
	@docker info > /dev/null || { echo 'NO CONTAINER WAS TESTED: Docker does not answer (above). Start it, or install it (Debian: docker.io)' >&2; exit 3; }
	$(MAKE) image image-answer-checks image-rocketmq
	$(PYTEST) tests/containers
	cd examples/orders && ../../$(PYTEST) --txbridge-backend=containers --txbridge-worker-image=$(IMAGE)

# Client, worker and Kafka killed, ended and stopped under 100,000 transactions each: some minutes for each of twelve cells,
# more on a busy machine. `make chaos ARGS="--brokers 3"` has fifteen on three brokers. A short version of both is part of
# `make test` and `make test-long`.
chaos: setup
	$(BIN)/python -m tests.chaos $(ARGS)

# A million transactions written by hand with every violation among them, and what the audit finds: some minutes.
corruption: setup
	$(BIN)/python -m tests.corruption $(ARGS)

# The audit's tests on another Spark than the locked one: ten minutes, and 450 MB the first time. All else is as locked.
audit-spark: setup
	$(PYTHON) -m venv build/spark-$(SPARK)
	build/spark-$(SPARK)/bin/python -m pip install --quiet --disable-pip-version-check pyspark==$(SPARK)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(build/spark-$(SPARK)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/locked.pth"
	PYTHONPATH=.:spark:connectors build/spark-$(SPARK)/bin/python -m pytest tests/unit/audit tests/integration/test_audit.py tests/integration/test_audit_corruption.py -m "not long" $(ARGS)

# The Django project and its web processes on another Django than the locked one, and so on Python 3.12: some minutes, and
# all of the locked packages the first time.
django: build/django-$(DJANGO)/.ready
	PYTHONPATH=.:spark:connectors build/django-$(DJANGO)/bin/python -m pytest tests/integration/test_django.py $(ARGS)

build/django-$(DJANGO)/.ready: requirements/lock.txt requirements/build.txt
	$(PYTHON312) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --require-hashes -r requirements/lock.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check django==$(DJANGO)
	touch $@

# The same scenarios on a real RocketMQ and on txbridge, side by side: five minutes, a JDK, and 98 MB of jars the first time.
differential: setup
	$(BIN)/python -m tests.differential $(ARGS)

# The images of compose/. All packages come from here, checked against the lock: nothing is fetched while an image is built.
# The wheels are for this machine's Python and processor, so use Python 3.11, which the images have.
images: image image-answer-checks image-rocketmq build/image/demo/.ready
	docker build --file compose/demo.Dockerfile --build-arg WORKER_IMAGE=$(IMAGE) --tag txbridge/demo:$(VERSION) build/image/demo

image: image-worker

image-%: build/image/%/.ready
	docker build --quiet --file compose/Dockerfile --target $* --tag txbridge/$*:$(VERSION) build/image/$*

build/image/%/.ready: $(STAMP) requirements/%.txt $(SOURCES)
	rm -rf build/image/$*/wheels && mkdir -p build/image/$*
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --require-hashes --no-build-isolation -r requirements/$*.txt --wheel-dir build/image/$*/wheels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation . --wheel-dir build/image/$*/wheels
	touch $@

build/image/demo/.ready: build/image/demo/ivy build/image/demo/flights

# The demonstration is an example, in no wheel.
build/image/demo/flights: $(wildcard examples/flights/*.py)
	rm -rf $@ && mkdir -p $@
	cp $^ $@

# Spark's own Ivy fetches the connector, as it does for every audit.
build/image/demo/ivy:
	mkdir -p $(@D)
	$(BIN)/python compose/fetch_connector.py $@

# Kafka, two workers and the demonstration with its audit, in containers; docs/compose.md.
compose: images
	docker compose --file compose/compose.yaml up --exit-code-from demo

# All measurements, as a table and build/bench/report.json: a JDK, and 98 MB of RocketMQ's jars the first time. Shorter:
# `make bench ARGS="--rounds 2"`; one of them: `make bench ARGS=pending`.
bench: setup
	$(BIN)/python -m tests.bench $(ARGS)

# Break the code once for each promise: a test named after the promise must notice.
broken: setup
	$(BIN)/python tests/broken_on_purpose.py

# Plant small defects in the pure core, one at a time, and see whether a fast test notices: `make mutation ARGS=draft`.
mutation: $(MUTATION)/.ready
	nice -n 19 $(MUTATION)/bin/python -m tests.mutation $(ARGS)

# An environment of its own: mutmut wants a later click than Faust allows, and the core needs nothing but pydantic-core.
$(MUTATION)/.ready: requirements/mutation.txt
	$(PYTHON) -m venv $(MUTATION)
	$(MUTATION)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/mutation.txt
	touch $@

# The site of docs/, in build/docs/site/index.html. It is strict about links and loads nothing from another host.
# Not --quiet: mkdocs counts the warnings that it prints, and --strict fails for those alone.
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

# An environment of its own: nothing that runs or tests txbridge needs these packages.
$(DOCS)/.ready: requirements/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	touch $@

clean:
	rm -rf build .venv
