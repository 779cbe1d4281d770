# What people and .ci/run both use. Every target works after: pip install uv && uv sync
.PHONY: check format format-check lint types layers spell docs-check test unit contract integration wheel docs benchmarks

RUN = uv run --no-sync

check: format-check lint types layers spell docs-check

format:
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

format-check:
	$(RUN) ruff format --check .

lint:
	$(RUN) ruff check .

types:
	$(RUN) mypy

layers:
	$(RUN) lint-imports

spell:
	$(RUN) codespell

docs:
	$(RUN) python docs/generate.py

docs-check:
	$(RUN) python docs/generate.py --check

test:
	$(RUN) pytest

unit:
	$(RUN) pytest tests/unit

contract:
	$(RUN) pytest tests/contract

integration:
	$(RUN) pytest tests/integration

wheel:
	rm -rf dist
	uv build --wheel --out-dir dist
	bash tests/smoke_wheel.sh dist/*.whl
