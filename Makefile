# Everything happens in .venv, and vLLM's part in .vllm; nothing is installed outside them, except that `make test` asks
# the system's package manager for Chromium and PostgreSQL (said before it does) when they are missing.
PYTHON ?= python3
VENV   ?= .venv
PY      = $(VENV)/bin/python
PIP     = $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

VLLM   ?= .vllm

.PHONY: demo check test test-kill vllm-env test-vllm docs clean

demo: $(VENV)/.demo
	@$(PY) scripts/demo.py

check: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# Two workers for what computes; then, alone, what starts real engines or kills processes: those need the cores and the clock.
test: $(VENV)/.dev
	@scripts/need-packages.sh
	$(PY) -m pytest -m "not (engine or kill or kill_long or vllm)" -n 2 --dist loadfile
	$(PY) -m pytest -m "(engine or kill) and not (kill_long or vllm)"

test-kill: $(VENV)/.dev
	$(PY) -m pytest -m "kill or kill_long" -v

vllm-env:
	@PYTHON="$(PYTHON)" scripts/vllm-env.sh $(VLLM)

test-vllm: $(VENV)/.dev vllm-env
	KVGATE_VLLM_PYTHON="$(abspath $(VLLM))/bin/python" $(PY) -m pytest -m vllm

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
	rm -rf $(VENV) $(VLLM) build .pytest_cache .mypy_cache .ruff_cache
