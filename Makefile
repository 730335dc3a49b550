# Four commands matter: `make demo`, `make quick`, `make test` and `make bench`. All install what
# they need (system packages as root, Python packages into .venv, Node's into .bench),
# and need no network once that is done. `make help` lists the rest.

VENV := .venv
BIN := $(VENV)/bin
PG15 := /usr/lib/postgresql/15/bin/postgres

# Only a value on make's own command line counts: an unrelated environment variable
# must not send the demo to another database.
given = $(filter command,$(firstword $(origin $(1))))
bench_file = $(if $(call given,$(1)),--$(2) "$$$(1)")
BENCH_OPTIONS = $(if $(call given,ONLY),$(ONLY)) $(if $(call given,QUICK),--quick) \
    $(call bench_file,PGQUE_SQL,pgque-sql) $(call bench_file,PGMQ_SQL,pgmq-sql)
AXE := .bench/axe/node_modules/axe-core/axe.min.js
DEMO_OPTIONS := $(if $(call given,DSN),--dsn "$$DSN") $(if $(call given,UI),--ui) $(if $(call given,CHART),--chart "$$CHART")

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without bytecode each process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# System packages come before what is built with them.
.NOTPARALLEL:
.PHONY: help demo prepare quick test bench venv lint types coverage sync pictures docs freeze dist clean packages-demo packages-test packages-bench

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: packages-demo $(VENV)/.installed-all ## the main job on real data; DSN=postgresql://... CHART=file.png UI=1: the console
	@$(BIN)/python -m examples.demo $(DEMO_OPTIONS)

# Four more than the cores: many tests wait for processes that they have started. mypy needs one
# core for a minute, and goes on beside them; what it says comes among their dots.
test: packages-test $(VENV)/.installed-dev $(AXE) lint ## ruff, mypy, and the suite on every PostgreSQL that is here; T="-k name" for a part
	@$(MAKE) --no-print-directory types & \
	$(if $(call given,T),,$(MAKE) --no-print-directory prepare;) \
	$(BIN)/pytest --numprocesses $$(($$(nproc) + 4)) --maxprocesses 8 --dist loadfile --no-loadscope-reorder \
	    --pg 18 $$(test -x $(PG15) && echo --pg 15) --pg-few 16 $(if $(call given,T),$(T)); \
	tested=$$?; wait $$! && exit $$tested

# What all processes of the suite would wait for: bytecode of the tests, and Java's archive of
# Spark's classes.
prepare: $(VENV)/.installed-dev
	@$(BIN)/pytest --quiet --pg 18 -m "spark and smoke" > /dev/null

quick: $(VENV)/.installed-dev lint types ## after each change: ruff, mypy, unit tests and a cross-section of the others, in a minute
	$(BIN)/pytest --numprocesses $$(nproc) --maxprocesses 4 --dist worksteal \
	    -m "(unit or smoke) and not slow" tests/unit tests/integration tests/migration

bench: packages-bench $(VENV)/.installed-bench ## measure, and write docs/benchmarks.md; ONLY=insert for one, QUICK=1 to see that it works
	@$(BIN)/python -m benchmarks $(BENCH_OPTIONS)

venv: $(VENV)/.installed-dev ## only the virtual environment, for development

lint: $(VENV)/.installed-dev ## style, and generated files that are not up to date
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tools/async_to_sync.py --check

sync: $(VENV)/.installed-dev ## write the sync client from the asyncio one
	$(BIN)/python tools/async_to_sync.py

types: $(VENV)/.installed-dev ## mypy, strict
	$(BIN)/mypy

# The plugin would import the package before coverage measures it.
coverage: $(VENV)/.installed-dev ## the suite on PostgreSQL 18, with coverage
	$(BIN)/pytest -p no:pgqpy --pg 18 --cov --cov-report=term $(if $(call given,T),$(T))

pictures: packages-test $(VENV)/.installed-dev ## of each view of the console, for the site
	$(BIN)/python -m tools.pictures 2> /dev/null

docs: $(VENV)/.installed-dev ## the documentation site, with the references, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

freeze: $(VENV)/.installed-dev ## at the first release: copy the structure of sql/ beside its revision
	$(BIN)/python tools/freeze_structure.py

dist: $(VENV)/.installed-dev ## wheel, source, pgq.sql and the extension's files, into dist/
	$(BIN)/python -m build --no-isolation
	$(BIN)/python tools/write_sql_files.py dist

# Finds faults of accessibility in the console's pages; without it that test is left out.
$(AXE):
	-@! command -v npm >/dev/null || npm install --prefix .bench/axe --ignore-scripts --no-audit --no-fund \
	    --loglevel=error axe-core@4

clean: ## remove what make and the tools have written, .venv included
	rm -rf $(VENV) .bench build dist htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

packages-demo packages-test packages-bench: packages-%:
	@tools/system-packages $* "$$(tools/find-python)" $(VENV)

$(BIN)/python:
	@tools/system-packages venv "$$(tools/find-python)" $(VENV)
	@"$$(tools/find-python)" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The packages for the tests are enough for the demo and for the benchmarks.
$(VENV)/.installed-all $(VENV)/.installed-bench: $(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@if test $(VENV)/.installed-dev -nt pyproject.toml; then \
	    touch $@; \
	else \
	    echo "Installing pgqpy and what it needs into $(VENV)"; \
	    $(BIN)/python -m pip install --quiet --use-pep517 --editable '.[$*]' && touch $@; \
	fi

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing pgqpy, what it needs and the tools to test it into $(VENV)"
	@$(BIN)/python -m pip install --quiet --use-pep517 --editable '.[dev]' && touch $@
