# Shortcuts for what .ci/run does. `make check` needs `make setup` once.
.PHONY: setup check test ci
bin := .venv/bin

setup:
	python3 -m venv .venv
	$(bin)/python -m pip install --editable '.[dev]' --constraint constraints.txt

check:
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/lint-imports
	$(bin)/mypy
	$(bin)/pyright --pythonpath $(bin)/python

test:
	$(bin)/python -m pytest

ci:
	.ci/run
