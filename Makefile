# Every target is one line over the virtual environment; scripts/setup.sh makes that, once.
MODEL ?= tiny
.DEFAULT_GOAL := all
.PHONY: help all setup up test test-gpu check check-native fix kernels docs golden bench wheel
help: ; @sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14  ## this list
all: check test  ## check and test
setup: ; @bash scripts/setup.sh  ## make the virtual environment, once
up: setup ; @.venv/bin/glm53ctl up --mode auto --model $(MODEL)  ## start the server: make up MODEL=tiny
test: setup ; @.venv/bin/python -m pytest  ## all tests that need no GPU
test-gpu: ; @python3 -m pytest tests/gpu -m gpu  ## tests on an NVIDIA card
check: setup ; @.venv/bin/python scripts/check.py  ## format, lint, types, imports
check-native: setup ; @.venv/bin/python scripts/check_native.py  ## build and check the C++ and CUDA code
fix: setup ; @.venv/bin/ruff check --fix . ; .venv/bin/ruff format .  ## format, and repair what lint can
kernels: setup ; @.venv/bin/python -m glm53_kernels.build  ## build the native libraries
docs: setup ; @.venv/bin/python scripts/gen_docs.py  ## write the generated pages
golden: setup ; @.venv/bin/python scripts/make_golden.py  ## rewrite the golden files from the code as it is
bench: setup ; @.venv/bin/glm53ctl bench  ## measure the running server
wheel: setup ; @.venv/bin/python -m build --wheel  ## build the wheel
