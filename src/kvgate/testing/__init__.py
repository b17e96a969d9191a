"""Conformance checks for plug-in authors and our own parts: of codecs, methods, engines and suites.

Each check raises AssertionError with a sentence that says what the plug-in promised and did not do.
"""

from kvgate.testing.codec import CodecReport, check_codec
from kvgate.testing.engine import EngineReport, check_attached, check_engine
from kvgate.testing.method import MethodReport, check_method
from kvgate.testing.requests import fake_request
from kvgate.testing.suite import SuiteReport, check_suite

__all__ = [
    "CodecReport",
    "EngineReport",
    "MethodReport",
    "SuiteReport",
    "check_attached",
    "check_codec",
    "check_engine",
    "check_method",
    "check_suite",
    "fake_request",
]
