# Every target sets up .venv first; that takes a moment when nothing changed. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?= python3
export PYTHON

# The wheels set no AMENT_PREFIX_PATH; a sourced ROS 2 keeps its own behind ours. A parent that runs
# from another environment of ROS wheels leaves a mark that would stop this one from starting up.
RUN := env -u _ROS_WHEELS_BOOTSTRAP_COMPLETE AMENT_PREFIX_PATH="$(CURDIR)/.venv$${AMENT_PREFIX_PATH:+:$$AMENT_PREFIX_PATH}"
PY := $(RUN) .venv/bin/python
DLNN := $(RUN) .venv/bin/dlnn
TYPED := dlnn_ros/config.py dlnn_ros/dynamics dlnn_ros/data dlnn_ros/learning dlnn_ros/runtime

.PHONY: help setup demo test test-all check smoke bench docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup: ## make .venv (PYTHON=python3.12 names another interpreter)
	@tools/setup.sh

demo: setup ## from a recording to feed-forward torque on ROS 2 (BAG=path: your recording)
	@$(DLNN) demo $(if $(BAG),--bag "$$BAG") $(ARGS)

test: setup ## the fast tests (ARGS='-k name' and the like go to pytest)
	@$(PY) -m pytest test -m 'not slow' -rs $(ARGS)

test-all: setup ## every test, the slow ones too
	@$(PY) -m pytest test -rs $(ARGS)

check: setup ## lint, format, types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy $(TYPED)

smoke: setup ## the command line from data to model, under a minute
	@$(RUN) tools/smoke.sh

bench: setup ## measure (ARGS='training --batch 1024', ...)
	@$(DLNN) bench $(or $(ARGS),training)

docs: setup ## API pages from the docstrings, in build/docs
	@$(PY) tools/api_docs.py build/docs

clean: ## remove what was built; .venv and models stay
	@rm -rf build install log demo_out .pytest_cache .mypy_cache .ruff_cache *.egg-info
	@find dlnn_ros test launch -name __pycache__ -type d -prune -exec rm -rf {} +
