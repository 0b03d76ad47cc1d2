# Targets that few changes need: experiments, images, and what a release needs. The Makefile includes this file.
SPARK ?= 4.1.1
DJANGO ?= 6.1.3
# Django 6 needs it.
PYTHON312 ?= python3.12
SOURCES := pyproject.toml $(shell find txbridge spark/txbridge_audit connectors -name '*.py')

.PHONY: chaos corruption differential mutation audit-spark pictures django image images compose sbom changelog lock

# `make chaos ARGS="--brokers 3"` has fifteen cells on three brokers. A short version of both is part of `make test` and
# `make test-long`.
chaos: setup ## client, worker and Kafka killed, ended and stopped under 100,000 transactions each: twelve cells of some minutes
	$(BIN)/python -m tests.chaos $(ARGS)

corruption: setup ## a million transactions written by hand with every violation among them, and what the audit finds: some minutes
	$(BIN)/python -m tests.corruption $(ARGS)

# A JDK, and 98 MB of jars the first time.
differential: setup ## the same scenarios on a real RocketMQ and on txbridge, side by side: five minutes
	$(BIN)/python -m tests.differential $(ARGS)

# An environment of its own: mutmut wants a later click than Faust allows, and the core needs nothing but pydantic-core.
mutation: build/mutation/venv/.ready ## small defects in the pure core, one at a time, and whether a fast test notices: ARGS=draft
	nice -n 19 build/mutation/venv/bin/python -m tests.mutation $(ARGS)

# Ten minutes, and 450 MB the first time. All else is as locked.
audit-spark: setup ## the audit's tests on another Spark than the locked one
	$(PYTHON) -m venv build/spark-$(SPARK)
	build/spark-$(SPARK)/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark[connect]==$(SPARK)'
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(build/spark-$(SPARK)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/locked.pth"
	PYTHONPATH=.:spark:connectors build/spark-$(SPARK)/bin/python -m pytest tests/unit/audit tests/integration/test_audit.py tests/integration/test_audit_corruption.py -m "not long" $(ARGS)
	PYTHONPATH=.:spark:connectors build/spark-$(SPARK)/bin/python -m pytest tests/integration/test_audit_program.py -k "test_spark_connect or standalone" $(ARGS)

# Needs a browser.
pictures: setup ## what docs/images shows: plots of the pages' tables, and the audit's page, from an audit of a real Kafka
	$(BIN)/python -m tools.state_diagram
	$(BIN)/python -m tools.plots
	$(BIN)/python -m tests.pictures

# Some minutes, and all of the locked packages the first time.
django: build/django-$(DJANGO)/.ready ## the Django project and its web processes on another Django than the locked one
	PYTHONPATH=.:spark:connectors build/django-$(DJANGO)/bin/python -m pytest tests/integration/test_django.py $(ARGS)

build/django-$(DJANGO)/.ready: requirements/lock.txt requirements/build.txt
	$(PYTHON312) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --require-hashes -r requirements/lock.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check django==$(DJANGO)
	touch $@

# All packages come from here, checked against the lock: nothing is fetched while an image is built. The wheels are for this
# machine's Python and processor, so use Python 3.11, which the images have.
images: image image-answer-checks image-rocketmq build/image/demo/.ready ## the images of compose/
	docker build --file compose/demo.Dockerfile --build-arg WORKER_IMAGE=$(IMAGE) --tag txbridge/demo:$(VERSION) build/image/demo

image: image-worker ## the worker's image

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

compose: images ## Kafka, two workers and the demonstration with its audit, in containers (docs/compose.md)
	docker compose --file compose/compose.yaml up --exit-code-from demo

sbom: build/release/venv/.ready ## what the worker's image has of Python packages, as build/release/sbom/worker-image.json
	mkdir -p build/release/sbom
	build/release/venv/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-file build/release/sbom/worker-image.json requirements/worker.txt

changelog: build/release/venv/.ready ## moves what is in changes/ into CHANGELOG.md, under the version of pyproject.toml
	build/release/venv/bin/towncrier build --yes --version $(VERSION)

# No index address is written: the lock file works with any registry.
LOCK := uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header

lock: ## all of requirements/, again, after a change of pyproject.toml; needs uv
	$(LOCK) --group build --group dev --extra demo --extra django --extra otel --extra rocketmq --extra sqlalchemy --extra testing pyproject.toml -o requirements/lock.txt
	$(LOCK) -c requirements/lock.txt --group build -o requirements/build.txt
	$(LOCK) --group mutation -o requirements/mutation.txt
	$(LOCK) --group docs -o requirements/docs.txt
	$(LOCK) -c requirements/build.txt --group release -o requirements/release.txt
	$(LOCK) -c requirements/lock.txt --extra worker pyproject.toml -o requirements/worker.txt
	$(LOCK) -c requirements/lock.txt --extra answer-checks --group image pyproject.toml -o requirements/answer-checks.txt
	$(LOCK) -c requirements/lock.txt --extra rocketmq pyproject.toml -o requirements/rocketmq.txt
	$(LOCK) -c requirements/lock.txt --extra demo pyproject.toml -o requirements/demo.txt
