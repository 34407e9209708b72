# Every target does its own set-up. Before: git, make, python3 (3.11 or newer) with its venv module.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: run test lint bench test-real tools lock clean help

help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 18

run: $(READY) tools ## the whole chain on loopback over a simulated server; BACKEND=http://host:8000 watches a real one
	@exec $(VENV)/bin/python -m demo $(if $(BACKEND),--backend "$(BACKEND)")

test: $(READY) tools ## all tests, on real Prometheus and Alertmanager
	$(VENV)/bin/python -m pytest $(PYTEST_ARGUMENTS)

lint: $(READY) tools ## ruff, mypy, promtool, amtool, the direction of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	.tools/bin/promtool check rules rules/alerts/*.yml $(wildcard rules/recording.yml)
	.tools/bin/promtool test rules rules/tests/*.yml
	.tools/bin/promtool check config config/prometheus.yml
	.tools/bin/amtool check-config config/alertmanager.yml
	$(VENV)/bin/python -m grafana.build --check
	$(VENV)/bin/python deploy/kubernetes/build.py --check
	$(VENV)/bin/python tools/config_reference.py --check
	$(VENV)/bin/python -m pytest -q tests/test_imports.py

bench: $(READY) ## what one poll costs, as ratios in one run
	@tools/get_prometheus.sh --with-blackbox
	$(VENV)/bin/python -m tests.bench

test-real: $(READY) tools ## the tests on a real vLLM and a real llama-server, each installed apart; REAL=vLLM for one
	REAL="$(REAL)" tests/real/run.sh

tools: ## Prometheus and Alertmanager: from PATH, else unpacked into .tools/
	@tools/get_prometheus.sh

lock: ## regenerate the hashed lock files
	$(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install -q uv
	.venv-lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --upgrade --extra all pyproject.toml -o requirements.lock
	.venv-lock/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --upgrade --extra dev pyproject.toml -o requirements-dev.lock

clean: ## remove everything that these targets made
	rm -rf .venv .venv-* .tools build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The environment is complete or not there: the marker comes last.
$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11; name another one: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv module; install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(VENV)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
