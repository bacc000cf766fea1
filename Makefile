# isray: `make study` and `make test` set everything up by themselves; `make help` lists the rest.

# That of the system, if it is new enough and complete: distributions build it with more optimisations than pyenv does.
PYTHON ?= $(shell for found in /usr/bin/python3 python3; do $$found -c 'from importlib.util import find_spec; import sys; \
    sys.exit(sys.version_info < (3, 11) or not (find_spec("ensurepip") or find_spec("pip")))' && break; done; echo $$found)
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/tools
INSTALLED := $(VENV)/.installed
UV := $(or $(shell command -v uv 2>/dev/null),$(TOOLS)/bin/uv)
STUDY := min-isr-2
COMPUTING := tests/house tests/unit tests/sim
# Two processes with the tests on Ray, which wait most of the time, and two that compute (tests/distribution.py).
MANY := --dist loadfile --no-loadscope-reorder -n
WHEEL = $(UV) build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist
# What a wheel is built from.
PACKAGED := pyproject.toml setup.py README.md LICENSE \
    $(shell find protocol actors experiments build_tools -type f -not -path '*/__pycache__/*')
ARGS ?=
SEEDS ?= 0..99

# Bytecode is kept, also where the environment says otherwise: an actor that has to compile Ray starts six times as slowly.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv collected test proof proof-tests test-fast test-ray test-spark test-browser test-kafka test-wheel chromium check study compiled wheels docs reference kafka-releases requirements audit swarm-coverage lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## .venv from requirements.lock, with the isray command in it

$(INSTALLED): requirements.lock pyproject.toml | $(UV)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make venv: $(PYTHON) is older than 3.11; name a newer one with: make venv PYTHON=python3.12" >&2; exit 1; }
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

$(TOOLS)/bin/uv:
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
	    $(PYTHON) -m venv $(TOOLS) && $(TOOLS)/bin/python -m pip install --quiet 'uv>=0.9,<1'; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	    $(PYTHON) -m pip install --quiet --target $(TOOLS) 'uv>=0.9,<1'; \
	else \
	    echo "make venv: $(PYTHON) has neither ensurepip nor pip; install it with: sudo apt-get install python3-venv" >&2; exit 1; \
	fi

test: chromium $(INSTALLED) ## everything: the checks and all tests; the slowest 30 are listed
	@$(MAKE) --no-print-directory --jobs 2 check collected
	$(BIN)/pytest $(MANY) 4 --durations 30 $(ARGS)

proof: proof-tests ## 60 fuzz seeds, determinism, every mutant, an exhaustive search, all scenarios on Ray
	$(BIN)/isray mutants --kept

proof-tests: $(INSTALLED) ## those of make proof that are tests
	$(BIN)/pytest -n 2 --dist worksteal $(COMPUTING) -m proof $(ARGS)
	$(BIN)/pytest $(MANY) 2 tests/ray -m proof $(ARGS)

test-fast: $(INSTALLED) ## unit and simulation tests without the slow ones and the proof: about a minute
	$(BIN)/pytest -n 2 --hypothesis-profile fast tests/unit tests/sim -m "not slow and not proof" $(ARGS)

test-ray: $(INSTALLED) ## the tests that start a Ray cluster
	$(BIN)/pytest $(MANY) 3 tests/ray $(ARGS)

test-spark: $(INSTALLED) ## the tests that start a JVM
	$(BIN)/pytest tests/spark $(ARGS)

test-browser: chromium $(INSTALLED) ## the tests that open pages in a headless Chromium
	$(BIN)/pytest tests/browser $(ARGS)

test-kafka: $(INSTALLED) ## the tests that run releases of Apache Kafka: needs Maven Central and a JDK 17; no part of make test
	@$(BIN)/python -c 'from os import environ; from experiments.support.releases.jdk import jdk; jdk(environ, "javac")' \
	    2>/dev/null || { echo "make: tests/kafka need a JDK 17 or newer; install it with: sudo apt-get install" \
	    "openjdk-17-jdk-headless" >&2; exit 1; }
	$(BIN)/pytest tests/kafka --durations 10 $(ARGS)

chromium:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { echo "make: tests/browser need chromium and" \
	    "chromedriver; install them with: sudo apt-get install chromium chromium-driver" >&2; exit 1; }

check: $(INSTALLED) ## ruff and mypy (strict)
	$(BIN)/ruff check .
	$(BIN)/mypy

collected: $(INSTALLED)
	@# Compiles the tests and what they import, which each process of pytest would do by itself otherwise.
	-@$(BIN)/pytest --collect-only --quiet > /dev/null

study: $(INSTALLED) ## the shipped study, from scratch: sweep, Spark, report
	rm -rf out/$(STUDY)
	$(BIN)/isray study run experiments/studies/$(STUDY).yaml --out out/$(STUDY) $(ARGS)

compiled: $(INSTALLED) ## nodes and simulator as extension modules in build/compiled (needs a C compiler); same traces, faster
	ISRAY_COMPILE=1 $(BIN)/python setup.py --quiet build --build-lib build/compiled
	@sources=$$($(BIN)/python -m experiments.bench.traces) && \
	    compiled=$$(cd build/compiled && $(abspath $(BIN))/python -m experiments.bench.traces --compiled) && \
	    echo "sources:  $$sources" && echo "compiled: $$compiled" && test "$$sources" = "$$compiled"
	@echo "to use it: PYTHONPATH=build/compiled $(BIN)/isray ..."

wheels: dist/.built ## dist/: a wheel for every platform, and one for this with nodes and simulator compiled (needs a C compiler)
	@ls dist/isray-*.whl

dist/.built: $(PACKAGED) | $(INSTALLED) $(UV)
	rm -rf dist build/lib build/lib.*
	$(WHEEL)
	rm -rf build/lib
	ISRAY_COMPILE=1 $(WHEEL)
	@touch $@

test-wheel: dist/.built ## both wheels in empty environments, outside of the checkout: needs a package index; no part of make test
	UV=$(UV) $(BIN)/pytest tests/wheel $(ARGS)

docs: reference $(INSTALLED) ## docs/ as a site in build/site, with docs/reference generated anew; needs no network
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --doctree-dir build/doctrees docs build/site
	@echo "build/site/index.html"

reference: $(INSTALLED) ## docs/reference, docs/kafka-releases.md and docs/pictures, generated from the code and from runs
	@$(BIN)/python -m experiments.reference

kafka-releases: $(INSTALLED) ## the figures of docs/kafka-releases.md, measured again: needs Maven Central and a JDK 17
	@$(BIN)/python -m experiments.reference.release_figures
	@$(MAKE) --no-print-directory reference

requirements: $(INSTALLED) ## covered and open items of docs/requirements.md; ARGS=--json for one JSON document
	@$(BIN)/python -m tests.requirements_report $(ARGS)

audit: $(INSTALLED) ## items of docs/requirements.md whose tests stay green while the code is mutated; ARGS="A13 --json"
	@$(BIN)/python -m tests.citation_audit $(ARGS)

swarm-coverage: $(INSTALLED) ## lines and branches of protocol/ that default runs of the fuzz reach, by module; SEEDS=0..99
	@mkdir -p build
	@$(BIN)/coverage run --data-file=build/swarm.coverage $(BIN)/isray fuzz --seeds $(SEEDS) --out build/swarm >build/swarm.txt
	@$(BIN)/coverage report --data-file=build/swarm.coverage $(ARGS)

lock: $(UV) ## requirements.lock from pyproject.toml; ARGS=--upgrade for newer releases
	$(UV) pip compile pyproject.toml --extra dev --universal --generate-hashes --no-header --no-emit-index-url \
	    --quiet --output-file requirements.lock $(ARGS)

clean: ## removes .venv, caches and build output; results in out/ stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache
