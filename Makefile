.PHONY: help install quickstart lint test test-slow

help:  ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

install:  ## Install with everything needed for development
	pip install -e ".[dev]"

quickstart:  ## Train the built-in policy with VAPO on a CPU
	python -m lit_reason fit --config configs/quickstart.yaml

lint:  ## Check style and types
	ruff check . && ruff format --check . && mypy

test:  ## Run the tests that take less than about ten seconds each
	pytest

test-slow:  ## Run the others
	pytest -m slow
