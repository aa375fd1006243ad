# Callstream. GNU make 3.81 or newer, on Linux or macOS. Needs uv, or a Python ≥ 3.11 to get uv with.
.DEFAULT_GOAL := help
.PHONY: help run trace backup restore upgrade test test-all web check check-web check-deploy release-check fmt bench bench-peers bench-relay chaos drill fuzz clean sync sync-run

UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
UV_VERSION := 0.13.9

# A company's own certificate authority is among the system's certificates only. uv and old releases of pip bring their own.
SYSTEM_CERTS := $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem))
ifneq ($(SYSTEM_CERTS),)
export UV_SYSTEM_CERTS ?= true
export PIP_CERT ?= $(SYSTEM_CERTS)
endif

# PYTHON=3.13 uses that Python in an environment of its own.
ifdef PYTHON
export UV_PYTHON := $(PYTHON)
export UV_PROJECT_ENVIRONMENT := .uv/python-$(notdir $(PYTHON))
endif
VENV := $(if $(UV_PROJECT_ENVIRONMENT),$(UV_PROJECT_ENVIRONMENT),.venv)
BIN := $(VENV)/bin

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: sync-run ## the whole product on this machine: http://127.0.0.1:8000 (PORT=, OPENAI_API_KEY=, MCP_CONFIG=, WORKERS=, …; see .env.example)
	@exec $(BIN)/python -m deploy.local.stack

trace: ## in Compose: the history of a call, a turn, a session or a trace (ID=…), from the store, Redis and all logs
	@test -n "$$ID" || { echo "make trace ID=…: the id of a call, a turn, a session or a trace is missing" >&2; exit 2; }
	@docker compose logs --no-color | \
	docker compose run --rm --no-deps --no-TTY operator dialog-engine trace --log - -- "$$ID"

backup: ## the store of the Compose project into a file (FILE=, else backups/…), while engines run
	@sh deploy/compose/backup.sh "$(FILE)"

restore: ## replace the store of the Compose project by FILE=…; engines and workers stop for that time
	@sh deploy/compose/restore.sh "$(FILE)"

upgrade: ## the Compose project to this version, one container at a time; BACK=FOLDER for the way back to the one there
	@python3 -m deploy.upgrade $(if $(BACK),--back "$(BACK)")

# Tests start hundreds of Python processes: without compiled bytecode each of them costs a second of CPU time more.
test test-all chaos: export PYTHONDONTWRITEBYTECODE :=

# Much of the time tests wait for processes: three test processes for each core. One that crashes fails the run.
PROCESSES ?= $(shell echo $$((3 * $$(getconf _NPROCESSORS_ONLN))))
PYTEST = $(BIN)/pytest -n $(PROCESSES) --max-worker-restart=0 --no-loadscope-reorder

test: sync ## the tests of every promise, in minutes; ARGS="tests/unit -k name" for some, PYTHON=3.13 on another Python
	$(PYTEST) -m "smoke or not exhaustive" --hypothesis-profile=fast $(ARGS)

test-all: sync ## every test: also browser, nginx, Docker, every Redis, guard mutations, short chaos; ARGS as above
	$(PYTEST) $(ARGS)

check: sync check-web check-deploy ## formatting, lint, types, import layers, lock file, deployment files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(UV) lock --check

check-deploy: sync ## compose files, Dockerfiles, Kubernetes manifests and alert rules, offline
	$(BIN)/yamllint --strict --config-file deploy/.yamllint.yml deploy docker-compose.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml deploy/compose/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/hadolint services/*/Dockerfile deploy/nginx/Dockerfile
	$(BIN)/python -m deploy.check
	@if command -v promtool >/dev/null; then promtool check rules --lint-fatal deploy/prometheus/alerts/*.yml >/dev/null; \
	else echo "check-deploy: the alert rules are not checked, there is no promtool on this machine"; fi

# The built page is in the engine's package: only who changes the page needs Node.
WEB := services/dialog-engine/web
web: ## build the page's files in the engine's package from services/dialog-engine/web; needs Node 20.19 or newer
	cd $(WEB) && npm ci --loglevel=error && npm run --silent build

check-web: ## the page built again and compared, its types, lint and unit tests; skipped without Node, or a registry to install from
	@if ! command -v npm >/dev/null; then echo "check-web: skipped, there is no Node (npm) on this machine"; exit 0; fi; \
	cd $(WEB); \
	if ! cmp -s package-lock.json node_modules/.installed; then \
	  if npm ci --loglevel=error; then cp package-lock.json node_modules/.installed; \
	  elif npm ping --fetch-retries=0 >/dev/null 2>&1; then \
	    echo "check-web: npm cannot install the packages of $(WEB), and its registry answers" >&2; exit 1; \
	  else echo "check-web: skipped, the registry of npm does not answer"; exit 0; fi; \
	fi; \
	npm run --silent check

release-check: sync ## before a release: bill of materials (dist/), known vulnerabilities, secrets in the files
	$(BIN)/python -m deploy.supply_chain --uv $(UV)

fmt: sync ## format, and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: sync ## the round trip of a tool call: alone, over HTTP, over stdio, beside the MCP SDK
	$(BIN)/python -m benchmarks.round_trip $(ARGS)

bench-peers: sync ## the same beside celery, taskiq, arq, faststream and pydocket, which it downloads
	UV="$(if $(findstring /,$(UV)),$(abspath $(UV)),$(UV))" $(BIN)/python -m benchmarks.peers $(ARGS)

bench-relay: sync ## a model's tokens relayed, beside a naive relay and LiteLLM's proxy
	$(BIN)/python -m benchmarks.relay $(ARGS)

chaos: sync ## every fault injection in full, minutes each, fault_pairs for hours; ARGS="workers_killed" for one (docs/reliability.md)
	$(BIN)/python -m tests.chaos --full $(ARGS)

drill: sync ## the product in containers, one part broken after the other (docs/drill.md); ARGS="workers poison" for some
	$(BIN)/python -m tests.drill $(ARGS)

fuzz: export FUZZ_TIMES ?= 600
fuzz: sync ## random and hostile input for every part, 600 times as much as in make test (FUZZ_TIMES); ARGS="-k replies" for one
	$(PYTEST) tests/fuzz --timeout 0 $(ARGS)

clean: ## remove what can be made again; conversations in .data stay
	rm -rf .venv .uv .pytest_cache .ruff_cache .hypothesis .import_linter_cache test-artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

sync: $(UV)
	@$(UV) sync --locked --quiet

# Only what runs; development tools that are there already stay.
sync-run: $(UV)
	@$(UV) sync --locked --inexact --no-dev --group local

.uv/bin/uv:
	@for python in python3.13 python3.12 python3.11 python3; do \
	  $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  echo "uv is missing: installing it into .uv with $$python"; \
	  $$python -m venv --clear .uv && .uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION) && exit 0; \
	  rm -rf .uv; exit 1; \
	done; \
	echo "uv is missing, and there is no Python 3.11 or newer (with its venv module) to install it with." >&2; \
	echo "Install uv (https://docs.astral.sh/uv/getting-started/installation/) or such a Python, and run make again." >&2; \
	exit 1
