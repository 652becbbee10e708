"""The fixtures of the worker tests."""

from tests.worker.conftest import fleet

__all__ = ["fleet"]
