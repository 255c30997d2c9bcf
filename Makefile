# make setup | run | test | lint | site | wheels | study, and the laboratory's commands.  Everything happens in .venv; nothing is
# installed outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

LABORATORY := attack soak faults learner learning seeds

.PHONY: setup run test lint test-core site wheels study clean $(LABORATORY)

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard hw/native/*.[ch]) hw/native/build.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "onrig needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -c 'from onrig.hw.native import library_state; s = library_state(); print("C library:", s.variant, s.reason)'
	touch $@

run: setup
	$(BIN)/onrig run pendulum

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --no-logo

# Tests of everything that is implemented in C and also without it: they pass without it, too.
WITHOUT_LIBRARY := $(addprefix tests/,hw/test_framing.py learner/algorithms/test_returns.py learner/samplers/test_sum_tree.py \
	learner/samplers/test_uniform.py learner/tape runtime/control/test_policy_switch.py runtime/control/test_tick.py \
	runtime/policy/test_admission.py runtime/policy/test_network.py runtime/policy/test_probing.py runtime/policy/test_session.py \
	runtime/memory/keepers runtime/memory/order runtime/memory/test_records.py tools/test_replay.py)

test: lint
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder  # six take a third longer on two cores
	ONRIG_NATIVE=off $(BIN)/python -m pytest -n 4 --dist loadfile $(WITHOUT_LIBRARY)

# The core's tests under another interpreter, without torch: make test-core PYTHON=python3.13
test-core:
	$(PYTHON) -m venv .venv-core
	.venv-core/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[log]' onnx pytest pytest-timeout hypothesis
	.venv-core/bin/python -m pytest tests/hw tests/runtime

# The pages and the Python API as a site in build/site
site: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx --quiet --fail-on-warning --conf-dir docs/site . build/site

# Wheels for x86-64 and aarch64 in dist/, tested (hw/README.md says what that needs)
wheels: setup
	$(BIN)/python -c 'import ziglang' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check ziglang
	$(BIN)/python hw/native/wheels.py

# The slow studies: seeds 0-9 of `pendulum` and `magman`, killed runs, a network that fails, and the like.
study: setup
	$(BIN)/python -m pytest -m study --timeout=0 -o faulthandler_timeout=0  # they have no time limit

# The laboratory (tests/lab/README.md): make attack ARGS='--quick --out attack-quick'
$(LABORATORY): setup
	$(BIN)/python -m tests.lab.$@ $(ARGS)

clean:
	rm -rf $(VENV) .venv-core build dist hw/native/*.so *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
