"""Conformance checks for plug-in authors and for our own parts: `check_engine`, `check_suite`, `fake_request`.

Each check raises AssertionError with a sentence that says what the plug-in promised and did not do.
"""

from kvgate.testing.engine import EngineReport, check_engine
from kvgate.testing.requests import fake_request
from kvgate.testing.suite import SuiteReport, check_suite

__all__ = ["EngineReport", "SuiteReport", "check_engine", "check_suite", "fake_request"]
