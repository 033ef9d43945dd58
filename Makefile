# Needs python3 (3.11 or newer) with venv, and bash.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo paper paper-cifar compare monitoring check test parts mutants soak soak-simulation soak-processes lint format images try-images docs docs-serve stubs constraints clean

PYTHON ?= python3
BIN := .venv/bin
# Keep compiled modules also where this is set: compiling all tests takes 15 s in every worker.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check

# $(call part,name,command): run a part of the checks and print its time.
define part
	@started=$$SECONDS; \
	if $(2); then printf '%-22s ok     %3d s\n' '$(1)' $$((SECONDS - started)); \
	else printf '%-22s FAILED %3d s\n' '$(1)' $$((SECONDS - started)); exit 1; fi
endef

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS=$$'\t' read -r name text; \
	do printf 'make %-12s %s\n' "$$name" "$$text"; done

demo: .venv/installed-demo ## a whole run on this machine, with a report at the end
	@$(BIN)/ssfl demo

paper: .venv/installed-demo ## the paper's claims tried at a small scale; prints first how long that takes
	@$(BIN)/ssfl paper

paper-cifar: .venv/installed-demo ## the main claims on CIFAR-10 with ResNet-8: 48 runs (ARGS=--full: other methods, too)
	@$(BIN)/ssfl paper --scale cifar --seeds 3 --download --out runs/paper-cifar $(ARGS)

compare: .venv/installed-demo ## all methods on the same data, seeds and clients: 90 simulated runs
	@$(BIN)/ssfl compare $(ARGS)

monitoring: .venv/installed-dev ## a federation watched by Prometheus, broken on purpose, with alerts that fire and clear
	@$(BIN)/python -m monitoring.live $(ARGS)

# Packages that tests need and pip cannot install. Without them, such tests are skipped.
APT_PARTS := prometheus prometheus-alertmanager chromium
parts:
	@missing=$$(for program in $(APT_PARTS); do command -v $$program >/dev/null || echo $$program; done; \
	  [ -d /usr/share/datasets/fashion-mnist ] || echo dataset-fashion-mnist); \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing" $$missing "..."; \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; } \
	    >/dev/null 2>&1 || echo "could not install" $$missing": the tests that need them are skipped"; \
	else echo "the tests that need" $$missing "are skipped: apt install them"; fi

# Two workers: system tests wait half of their time. tests/conftest.py assigns the files.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

check: lint ## format, lint, types and the tests without processes: after each change, 4 minutes
	@SAMPLE=1 $(PYTEST) -m 'not system'

test: lint parts ## format, lint, types and all tests
	@$(PYTEST) --durations=10

mutants: .venv/installed-dev ## plant bugs one at a time: the tests must catch each
	@$(BIN)/python tests/mutants.py

soak: soak-simulation soak-processes ## long tests: thousands of simulated runs with crashes, and 2,000 real rounds

N ?= 5000
soak-simulation: .venv/installed-dev
	@PYTHONPATH=tests $(BIN)/python -m simulation.soak $(N)

soak-processes: .venv/installed-dev
	@$(BIN)/python -m benchmarks.soak

lint: .venv/installed-dev ## format, lint and types only
	$(call part,ruff format --check,$(BIN)/ruff format --check --quiet .)
	$(call part,ruff check,$(BIN)/ruff check --quiet .)
	$(call part,mypy,$(BIN)/mypy --no-error-summary)
	$(call part,yamllint,$(BIN)/yamllint --strict k8s monitoring compose.yaml mkdocs.yml .yamllint.yaml)
	$(call part,hadolint,$(BIN)/hadolint Dockerfile)

format: .venv/installed-dev ## reformat the sources
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

BUILD ?= $(if $(shell command -v docker),docker build,buildah bud --format docker)
images: ## build both container images, with docker or buildah
	@$(BUILD) --target coordinator --tag ssfl-coordinator:local .
	@$(BUILD) --target client --tag ssfl-client:local .

try-images: .venv/installed-demo ## build both images and run a federation in containers (root, some minutes)
	@BIN=$(BIN) k8s/try-images.sh

docs: .venv/installed-dev ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'open site/index.html'

docs-serve: .venv/installed-dev ## serve the documentation at localhost:8000 with live reload
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

stubs: .venv/installed-dev ## generate proto/ssfl/v1/*_pb2* from the protos
	@$(BIN)/python proto/generate-stubs.py

# Stamp files: pip runs again only if its inputs have changed.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo 'ssfl needs Python 3.11 or newer: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -m venv .venv

.venv/installed-demo: pyproject.toml constraints.txt | .venv/bin/python
	@echo 'setting up .venv (once, about 2 minutes) ...'
	@$(PIP_INSTALL) -c constraints.txt -e '.[demo]'
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo 'setting up .venv for development (once, about 2 minutes) ...'
	@$(PIP_INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@ .venv/installed-demo

NEWEST := tests/newest-grpc.txt
# torch is installed first: its version decides which build and which dependencies are chosen.
constraints: ## pin today's versions in constraints.txt and tests/newest-grpc.txt
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	echo 'installing into a fresh environment (about 2 minutes) ...'; \
	torch=$$(grep '^torch==' constraints.txt); \
	header=$$(grep '^#' constraints.txt); \
	$(PYTHON) -m venv "$$folder"; \
	"$$folder/bin/python" -m pip install -qq "$$torch"; \
	"$$folder/bin/python" -m pip install -qq '.[dev]' "$$torch"; \
	"$$folder/bin/python" -m pip freeze --all > "$$folder/freeze"; \
	{ printf '%s\n' "$$header"; \
	  sed -e '/^pip==/d' -e '/^ssfl[ =]/d' -e 's/+[a-z0-9.]*$$//' "$$folder/freeze"; } > "$$folder/new"; \
	! grep -iE '^(nvidia|cuda|triton)' "$$folder/new"; \
	cat "$$folder/new" > constraints.txt; \
	"$$folder/bin/python" -m pip install -qq --target "$$folder/newest" \
	  $$(sed -n 's/^\(grpcio[a-z-]*\|protobuf\)==.*/\1/p' $(NEWEST)); \
	"$$folder/bin/python" -m pip freeze --path "$$folder/newest" > "$$folder/freeze"; \
	{ grep '^#' $(NEWEST); grep -E '^(grpcio|protobuf)' "$$folder/freeze"; } > "$$folder/new"; \
	cat "$$folder/new" > $(NEWEST); git diff --stat -- constraints.txt $(NEWEST) || true

clean: ## remove .venv and every cache; your runs and shards stay
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .parts build dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
