# Every target sets itself up on a machine that has only Python >= 3.11: a virtual environment in
# .venv with the versions of constraints.txt, made again when pyproject.toml or they change.

PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := .venv/bin
READY := .venv/ready
SITE_READY := .venv/site-ready
PROTO := transport/fleet.proto
PYTEST := $(BIN)/python -m pytest -q
PARTS := tests/federation tests/client+tests/faults tests/interop+tests/simulations

.PHONY: help demo test fuzz soak idle check format bench proto manifests docs site changelog clean
.NOTPARALLEL:

help:
	@echo "make demo    a whole federation on this machine, with mutual TLS and real data;"
	@echo "             with SECURE=1 the server sees only sums of updates"
	@echo "make test    every test"
	@echo "make soak    a federation under random faults, for SECONDS=600, with SEED=1; MODEL_MB=20"
	@echo "             makes the model so large, FAULTS=kills,network,bits,disks says which,"
	@echo "             PAUSE=4 how many seconds apart, POINTS=1000 how many are enough"
	@echo "make idle    idle agents behind proxies that cut idle connections after CUT=60 seconds, for"
	@echo "             SECONDS=600: no instruction is lost"
	@echo "make fuzz    inputs that nobody sends to every decoder, for as long as it is told:"
	@echo "             make fuzz SECONDS=3600; what it finds is kept in fuzz-corpus/"
	@echo "make check   formatting, lint, types, layers and packaging"
	@echo "make format  apply what formatting and lint can repair"
	@echo "make bench   the benchmarks, or one: make bench NAME=aggregation"
	@echo "make proto   the Python code of $(PROTO)"
	@echo "make manifests  what the chart in deploy/kubernetes renders to"
	@echo "make docs    docs/configuration.md, docs/algorithms.md, docs/security.md, docs/flower.md from the code"
	@echo "make site    the documentation as a site in build/site: pages, tutorials that are executed, reference"
	@echo "make wheelhouse  wheels of all that is needed, for machines without a package index"
	@echo "make changelog  what the next release says, from changelog.d/"
	@echo "make clean   remove what is made, but not .venv nor runs"

demo: $(READY)
	@$(BIN)/meadow demo$(if $(SECURE), --secure)

test: $(READY) # each of PARTS and the other tests in a process of its own, at once: many tests wait
	@started=; failed=0; $(foreach part,$(PARTS),$(PYTEST) --durations=5 $(subst +, ,$(part)) & started="$$started $$!"; )\
	$(PYTEST) --durations=5 $(patsubst %,--ignore=%,$(subst +, ,$(PARTS))) || failed=1; \
	for process in $$started; do wait $$process || failed=1; done; exit $$failed

soak: SECONDS ?= 600
soak: SEED ?= 1
soak: $(READY) # kills, cut lines, full disks (as root) and flipped bits: every model is compared
	@cd tests && PYTHONPATH=shared ../$(BIN)/python -m federation.soak --seconds $(SECONDS) --seed $(SEED) \
		$(if $(MODEL_MB),--model-mb $(MODEL_MB)) $(if $(FAULTS),--faults $(FAULTS)) \
		$(if $(PAUSE),--pause $(PAUSE)) $(if $(POINTS),--points $(POINTS))

idle: SECONDS ?= 600
idle: CUT ?= 60
idle: $(READY) # idle agents behind proxies that cut them: no instruction is lost
	@cd tests && PYTHONPATH=shared ../$(BIN)/python -m federation.soak.idle --seconds $(SECONDS) --cut $(CUT)

fuzz: SECONDS ?= 600
fuzz: $(READY) # the inputs that it finds are changed further in later runs
	@cd tests && ../$(BIN)/python -m fuzz --seconds $(SECONDS) --corpus ../fuzz-corpus

check: $(READY) build/names/meadow
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy -p meadow
	@$(PYTEST) tests/test_layering.py tests/test_packaging.py tests/test_project.py

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY)
	@set -e; for program in $(if $(NAME),benchmarks/$(NAME).py,$(wildcard benchmarks/[a-z]*.py)); do \
		echo "== $$program"; $(BIN)/python $$program; done

proto: $(READY) build/names/meadow
	@$(BIN)/python -m grpc_tools.protoc -I build/names --python_out=build/names \
		--pyi_out=build/names --grpc_python_out=build/names meadow/$(PROTO)

manifests: # what deploy/kubernetes/meadow renders to, for who has no Helm; needs what render.go names
	@for name in server agent; do \
		{ echo "# Rendered from the chart beside it by make manifests: a copy to read, and for who has no Helm." && \
		GO111MODULE=off GOPATH=/usr/share/gocode go run tests/deploy/chart/render.go deploy/kubernetes/meadow \
			meadow default tests/deploy/chart/$$name.values.yaml; } > deploy/kubernetes/$$name.yaml || exit 1; done

docs: $(READY)
	@$(BIN)/python docs/configuration.py docs/configuration.md
	@$(BIN)/python docs/algorithms.py docs/algorithms.md
	@$(BIN)/python docs/flower.py docs/flower.md
	@$(BIN)/python docs/security.py docs/security.md

site: $(SITE_READY) # the tutorials run, one thread each; every link is checked
	@OMP_NUM_THREADS=1 $(BIN)/python docs/site/build.py build/site

wheelhouse: EXTRAS ?=
wheelhouse: $(READY) # for machines without a package index, and for images; for this kind of machine
	@rm -rf build/wheelhouse
	@$(BIN)/python -m pip wheel -q -c constraints.txt -w build/wheelhouse ".$(if $(EXTRAS),[$(EXTRAS)])"
	@cp constraints.txt build/wheelhouse
	@du -sh build/wheelhouse

changelog: $(READY)
	@$(BIN)/towncrier build --draft

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Meadow needs Python 3.11 or newer: install it, or name one\
	with make PYTHON=/path/to/python3"; exit 1; }
	@echo "Installing into .venv (several minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		-c constraints.txt -e '.[dev,compression,dp,examples,data,plots,tracking,tracing,xgboost,lora]'
	@touch $@

$(SITE_READY): $(READY)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[site]'
	@touch $@

build/names/meadow:
	@mkdir -p build/names
	@ln -sfn ../.. $@
