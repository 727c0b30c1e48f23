# Everything runs in .venv, which the first target makes. Nothing needs to be installed by hand but Python and make.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
# Modules are compiled when they are first imported, not all at once: most of PyTorch's never are.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS)
DEMO := .venv/.demo
STAMP := .venv/.installed

.PHONY: demo test test-all test-browser test-transformers-4 faults mutations check smoke smoke-full bench docs tutorials screenshots dist clean

$(DEMO): pyproject.toml $(CONSTRAINTS)  # what the demo needs
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) torch --editable '.[report]'
	touch $(DEMO)

$(STAMP): $(DEMO)  # what everything else needs, on top
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	touch $(STAMP)

demo: $(DEMO)  ## score a few sentences, with error bars and a page to open
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## the default tests: a few minutes on two cores
	$(BIN)/python -m pytest -n 2 -q

test-all: $(STAMP)  ## the slow ones too
	$(BIN)/python -m pytest -n 2 -q -m 'slow or not slow' --timeout=1800

SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
test-browser: $(STAMP)  ## reports and the documentation in a real browser: Debian's chromium, installed if it is not there
	@command -v chromium >/dev/null \
		|| { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -qq --yes --no-install-recommends chromium; } \
		|| { echo "Browser tests need chromium, and apt-get could not install it. Install it by hand, then try again." >&2; exit 1; }
	$(BIN)/python $(INSTALL) --editable '.[browser,docs]'
	$(BIN)/python -m sphinx -q -b html docs docs/_build/html
	$(BIN)/python -m pytest -q tests/apps/browser

test-transformers-4: pyproject.toml $(CONSTRAINTS)  ## models of transformers, with its last version 4
	$(PYTHON) -m venv .venv-4
	.venv-4/bin/python $(INSTALL) torch --editable '.[dev]' transformers==4.57.6
	.venv-4/bin/python -m pytest -n 2 -q tests/models/test_adapters.py tests/models/test_conformance.py tests/models/test_doctor.py

KILLS ?= 200
faults: $(STAMP)  ## kill `infodis score`, Ray's workers and its driver: the finished file is the same, others are untouched
	$(BIN)/python tests/faults.py --kills $(KILLS)
	$(BIN)/python tests/collisions.py --trials $(KILLS)
	$(BIN)/python -m pytest -q -m slow tests/jobs/test_ray.py -k 'dies or killed'

mutations: $(STAMP)  ## break the sources on purpose, in a copy: a test must notice each time
	$(BIN)/python tests/mutations.py

check: $(STAMP)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

smoke: $(STAMP)  ## every experiment of the paper, as small as it gets: scored, trained, and in the paper's shape
	rm -rf out/smoke
	$(BIN)/python tests/smoke.py --out out/smoke

smoke-full: $(STAMP)  ## the paper's size with tiny networks: 500 + 500 texts, all its draws and repeats; 20 minutes on one core
	rm -rf out/smoke-full
	$(BIN)/python tests/smoke.py --out out/smoke-full --texts 500 --only full,authors

bench: $(STAMP)  ## the numbers of docs/benchmarks.md
	$(BIN)/infodis bench variance --sequences 40 --runs 100 --out out/bench
	$(BIN)/infodis bench auto --out out/bench
	$(BIN)/infodis bench ratio --runs 400 --out out/bench
	$(BIN)/infodis bench gradient --out out/bench
	$(BIN)/infodis bench overhead --out out/bench
	$(BIN)/python benchmarks/gradient_memory.py
	$(BIN)/infodis bench throughput --texts 200 --out out/bench
	$(BIN)/infodis bench engine --out out/bench
	$(BIN)/python benchmarks/startup.py

docs: $(STAMP)  ## HTML documentation in docs/_build/html; its search, snippets and notebooks are tried
	$(BIN)/python $(INSTALL) --editable '.[docs]'
	$(BIN)/python -m sphinx -q -W -b html docs docs/_build/html
	$(BIN)/python -m pytest -q tests/docs

tutorials: $(STAMP)  ## run the notebooks of docs/tutorials again and keep their outputs
	$(BIN)/python $(INSTALL) --editable '.[docs]'
	$(BIN)/python tests/docs/notebooks.py

screenshots: docs  ## pictures of the site for the documentation, by chromium
	$(BIN)/python $(INSTALL) --editable '.[browser]'
	$(BIN)/python tests/apps/browser/screenshots.py --site docs/_build/html --out docs/images

dist: $(DEMO)  ## sdist and wheel in dist, and the wheel tried in an empty environment
	$(BIN)/python $(INSTALL) --editable '.[dist]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist >/dev/null
	CONSTRAINTS=$(CONSTRAINTS) $(BIN)/python tests/distribution.py dist

clean:
	rm -rf .venv .venv-4 out dist docs/_build
