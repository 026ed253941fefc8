# Every command first sees to the set-up that it needs. GNU make 3.81 and a POSIX shell suffice.
PYTHON ?= python3
BIN := .venv/bin
HANGS := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
CASES := -m "not soak" -n 2 --dist loadfile --nbval $(HANGS)
.DEFAULT_GOAL := help
.PHONY: help setup tour test proofs lab book nbval-twice soak lock clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /make \1: /p' Makefile

setup: ## install the pinned packages into .venv; PYTHON=python3.12 chooses Python; TORCH=cpu, TORCH=cu130 or TORCH=URL the build of torch
	@command -v "$(PYTHON)" >/dev/null || { echo "setup: no $(PYTHON) here; install Python 3.11 or newer." >&2; exit 1; }
	@"$(PYTHON)" tools/setup.py $(if $(filter command,$(origin PYTHON)),--this-python)

tour: setup ## train, compare and look at the results in one notebook
	@$(BIN)/uavlab notebook tour -p out_dir runs/tour/run --out runs/tour/tour.ipynb

test: setup ## check style, types and imports, run unit tests, contracts and the tour
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest $(CASES) tests/unit tests/contracts notebooks/*_tour.ipynb

proofs: setup ## run the proofs that need processes, devices, kernels or a browser, and every notebook
	$(BIN)/pytest $(CASES) tests/proofs notebooks

lab: setup ## open the notebooks in JupyterLab
	@$(BIN)/uavlab lab

book: setup ## write notebooks, guides and API as pages that work offline, in build/book
	@$(BIN)/python -m tools.book

nbval-twice: setup ## run every notebook twice, each time against its stored outputs
	$(BIN)/pytest --nbval notebooks
	$(BIN)/pytest --nbval notebooks

soak: setup ## run the long proofs, for an hour or more; a second call goes on where the first one ended
	$(BIN)/python tools/soak.py

# Versions that are pinned stay; `--upgrade-package NAME` in LOCK raises one. Torch has no digests: its builds differ by index.
LOCK := uv pip compile --quiet --universal --no-annotate --custom-compile-command "make lock"
lock: # after a change of requirements in pyproject.toml; needs uv
	$(LOCK) pyproject.toml --extra all --extra dev --group setup --output-file constraints.txt
	$(LOCK) constraints.txt --generate-hashes --no-emit-package torch --output-file requirements.lock

clean: ## remove .venv and caches; runs/ stays
	rm -rf .venv .import_linter_cache .pytest_cache .mypy_cache .ruff_cache build *.egg-info
	find uavlab notebooks tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
