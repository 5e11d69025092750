# Every target makes the virtual environment it needs: .venv with Spark, for all of it.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint docs coverage interop bench sim crash spark fuzz wheels release-check clean

demo: $(VENV)/.ready      ## 336,776 flights through the broker and Spark, checked
	$(RUN) examples/flights_demo.py

test: $(VENV)/.ready      ## everything that needs no foreign toolchain; EVERY_PYTHON=1: on each Python that is present
	$(RUN) tests/every_python.py

# All but these modules are checked for names that Windows lacks.
NEED_UNIX = 'turbopump/(broker|controller|hot|namesrv|replication|store)/|disk/(kernel_syncs|locks|mapped_segments|maps|read_only_disk|system_disk)|remoting/listening_port|cli/(service_manager|serving)|spark/log_scan'
AS_WINDOWS = --platform win32 --no-warn-unreachable --follow-imports silent --exclude $(NEED_UNIX) --cache-dir .mypy_cache/win32

lint: $(VENV)/.ready      ## format, lint, types, import directions, dead links
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) -m mypy $(AS_WINDOWS) src/turbopump
	$(VENV)/bin/lint-imports --no-cache
	$(RUN) tests/links.py

docs: $(VENV)/.ready      ## the documentation site, in out/site: any warning is an error
	$(PIP) --group docs
	$(RUN) -m sphinx -W --keep-going -q -b html docs out/site
	@echo "the site is in out/site: $(RUN) -m http.server -d out/site --bind 127.0.0.1 8000"

coverage: $(VENV)/.ready  ## branches of store/ that its tests take, and except bodies that they execute: 95 %, all
	$(RUN) tests/coverage_of_store.py

interop: $(VENV)/.ready   ## foreign clients against our servers, our clients against Apache's
	$(RUN) tests/two_lanes.py interop

BENCHES = -mbench -mbench.clients -mbench.clients.consuming -mbench.clients.end_to_end -mbench.sql_pulls -mbench.held_polls \
          -mbench.limits -mbench.signed_requests -mbench.name_server -mbench.replicas -mbench.recovery -mbench.after_restart -mbench.cold_reader -mbench.spark_kafka -mbench.spark_scan -mbench.spark_pipeline tests/spark/measure_read.py \
          -mbench.many_topics '-mbench.many_topics --part sends --topics 1000 --descriptors 1024 --no-apache'

bench: $(VENV)/.ready     ## our broker and Apache's in turn: ratios; then producers, consumers, filters, held polls, what one client can do to another, what access control costs, name servers, masters with slaves, recovery, pulls after a restart, a cold reader, thousands of topics; the Spark source, Kafka's, a scan of a log, pipelines, and a tuple per row
	@missed=; for part in $(BENCHES); do echo "$(RUN) $$part"; $(RUN) $$part || missed="$$missed $$part ($$?)"; done; \
	if test -n "$$missed"; then echo "missed (1) or failed (2):$$missed"; exit 1; fi

sim: $(VENV)/.ready       ## many seeds of the simulation, in virtual time
	$(RUN) tests/two_lanes.py sim

crash: $(VENV)/.ready     ## kills, power cuts, torn files, flipped bits, I/O errors, full disks: docs/explanations/durability.md
	$(RUN) tests/two_lanes.py crash

spark: $(VENV)/.ready     ## Spark for long: kills at each step, clusters, packed environments; pipelines lose and double nothing
	$(RUN) -m pytest -ra tests/spark_long

fuzz: $(VENV)/.ready      ## new arbitrary input, fifty times as much as make test draws; then 2 million for each reader of what peers send, with atheris
	TURBOPUMP_FUZZ=50 $(RUN) -m pytest -ra -m hypothesis tests/unit tests/golden tests/spark
	TURBOPUMP_FUZZ=50 $(RUN) -m pytest -ra tests/unit/broker/test_fuzz.py
	$(PIP) --only-binary :all: atheris || true  # no wheel for this Python: the next line says so
	$(RUN) -m tests.fuzz_atheris

wheels: .venv-release/.ready ## the sdist and wheels in dist/; built twice, installed without a compiler, tested: a table of proofs
	.venv-release/bin/python -m release.wheels

release-check: $(VENV)/.ready .venv-release/.ready ## everything that a release promises, tried here; a table of proofs
	.venv-release/bin/python -m release.check

clean:
	rm -rf .venv* .cache out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml setup.py constraints.txt $(wildcard src/turbopump/hot/*.p*)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Turbopump needs Python 3.11 or later; set PYTHON=…")'
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "installing Turbopump with Spark into $(VENV) (about 600 MB, once; pip is silent for a minute or more)"
	$(PIP) --upgrade pip setuptools
	$(PIP) --group dev -e '.[all]'
	touch $@

.venv-release/.ready: release/constraints.txt
	@$(PYTHON) -m venv --clear .venv-release
	.venv-release/bin/python -m pip install --quiet --disable-pip-version-check -r release/constraints.txt
	touch $@
