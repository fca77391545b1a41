# Every target is one line over the virtual environment; scripts/setup.sh makes that, once.
MODEL ?= tiny
.DEFAULT_GOAL := all
.PHONY: all setup up test test-gpu check check-native fix kernels docs golden bench wheel
all: check test
setup: ; @bash scripts/setup.sh
up: setup ; @.venv/bin/glm53ctl up --mode auto --model $(MODEL)
test: setup ; @.venv/bin/python -m pytest
test-gpu: ; @python3 -m pytest tests/gpu -m gpu
check: setup ; @.venv/bin/python scripts/check.py
check-native: setup ; @.venv/bin/python scripts/check_native.py
fix: setup ; @.venv/bin/ruff check --fix . ; .venv/bin/ruff format .
kernels: setup ; @.venv/bin/python -m glm53_kernels.build
docs: setup ; @.venv/bin/python scripts/gen_docs.py
golden: setup ; @.venv/bin/python scripts/make_golden.py
bench: setup ; @.venv/bin/glm53ctl bench
wheel: setup ; @.venv/bin/python -m build --wheel
