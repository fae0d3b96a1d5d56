# Needs python3 (3.11 or later) with pip, and make. Everything else is installed inside this folder.
PYTHON ?= python3
ARGS ?=

V  := .venv
PY := $(V)/bin/python
UV := .boot/bin/uv

export UV_SYSTEM_CERTS := 1
export UV_PYTHON_DOWNLOADS := never
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

# Modules that were imported once stay compiled, in .venv and in the source folders.
unexport PYTHONDONTWRITEBYTECODE

# Tests mostly compile: XLA's older code generator with little optimisation takes less time, and so does code in one piece, since
# each process has one core. What depends on how code is optimised has a process of its own, without these flags. They belong to
# the pinned version; others may not know them.
TEST_FLAGS = --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1

# $(call install,ARGUMENTS): uv first; then pip, which reads the user's own configuration (a mirror, for example).
install = $(UV) pip install -q --python $(PY) $(1) || \
	{ echo "uv could not install these; trying pip" >&2; $(PYTHON) -m pip --python $(PY) install -qq $(1); }

# $(call compile,ARGUMENTS,FILE): write pins that name no index, host or path.
compile = $(UV) --no-config pip compile -q $(1) --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-header --no-annotate $(ARGS) -o requirements/$(2).txt

.DEFAULT_GOAL := help
.PHONY: help demo test venv lint docs bench mutants dist pins clean

help:  ## list these targets
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1	\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(V)/.test  ## the package's main job in one run; ARGS="--help" lists its options
	@$(V)/bin/sgdlimits demo $(ARGS)

test: $(V)/.test  ## run the tests, one case of each law; ARGS=--all runs every case, ARGS="tests/laws -k chain" some
	@OPENBLAS_NUM_THREADS=1 XLA_FLAGS="$(XLA_FLAGS) $(TEST_FLAGS)" $(PY) -m pytest $(ARGS)

venv: $(V)/.test  ## set up .venv and stop there

lint: $(V)/.lint  ## ruff, mypy and codespell
	@$(V)/bin/ruff check .
	@$(V)/bin/ruff format --check .
	@$(V)/bin/mypy
	@$(V)/bin/codespell

docs: $(V)/.docs  ## build the documentation into docs/_build/html
	@$(V)/bin/sphinx-build -q -W --keep-going -b html docs docs/_build/html $(ARGS)
	@echo "docs/_build/html/index.html"

bench: $(V)/.test  ## run the benchmarks
	@$(PY) benchmarks/run.py $(ARGS)

mutants: $(V)/.test  ## put small faults into copies of the code, and say which tests see them (long); ARGS=clip tries some
	@OPENBLAS_NUM_THREADS=1 XLA_FLAGS="$(XLA_FLAGS) $(TEST_FLAGS)" $(PY) tests/mutants.py $(ARGS)

dist: $(UV)  ## build sdist and wheel into dist/, and try the wheel in a fresh environment of each Python
	@rm -rf dist
	@$(UV) build -q --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" --build-constraints requirements/test.txt
	@$(PYTHON) tests/dist.py

pins: $(UV)  ## rewrite requirements/*.txt from pyproject.toml; ARGS=--upgrade moves to the newest versions
	@mkdir -p requirements
	@$(call compile,pyproject.toml --extra cluster --extra explore --group test --group build,test)
	@$(call compile,--group lint -c requirements/test.txt,lint)
	@$(call compile,--group docs -c requirements/test.txt,docs)
	@! grep -nE '://|^ *-[-a-z]*(index|find-links)| @ |^ */|file:' requirements/*.txt

clean:  ## remove environments, caches and built pages
	@rm -rf $(V) .boot build dist docs/_build docs/generated docs/auto_examples docs/sg_execution_times.rst
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(UV):
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("sgdlimits needs Python 3.11 or later; $(PYTHON) is %d.%d. Try: make PYTHON=python3.12 ..." % v[:2])'
	@echo "Fetching uv into .boot"
	@PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 $(PYTHON) -m pip install -qq --upgrade --target .boot 'uv>=0.11'

$(PY): | $(UV)
	@echo "Making $(V)"
	@$(UV) venv -q --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(V)

$(V)/.test: requirements/test.txt pyproject.toml | $(PY)
	@echo "Installing requirements/test.txt and sgdlimits into $(V)"
	@$(call install,--require-hashes -r requirements/test.txt)
	@$(call install,--no-deps --no-build-isolation -e .)
	@touch $@

$(V)/.lint: requirements/lint.txt $(V)/.test
	@echo "Installing requirements/lint.txt into $(V)"
	@$(call install,--require-hashes -r requirements/lint.txt)
	@touch $@

$(V)/.docs: requirements/docs.txt $(V)/.test
	@echo "Installing requirements/docs.txt into $(V)"
	@$(call install,--require-hashes -r requirements/docs.txt)
	@touch $@
