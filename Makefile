# Four verbs: demo, check, test, test-kill. Everything happens in .venv; nothing is installed outside it, except that
# `make test` asks the system's package manager for Chromium (said before it does) when none is there.
PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
PIP     = $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo check test test-kill docs clean

demo: $(VENV)/.demo
	@$(PY) scripts/demo.py

check: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

test: $(VENV)/.dev
	@scripts/need-packages.sh
	$(PY) -m pytest -m "not kill_long"

test-kill: $(VENV)/.dev
	$(PY) -m pytest -m "kill or kill_long" -v

docs: $(VENV)/.dev
	$(PY) -m kvgate.cli.pages docs

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvgate needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing kvgate and the llama.cpp engine into $(VENV) ..."
	$(PIP) --editable '.[llamacpp]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --requirement requirements-dev.txt
	@touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
