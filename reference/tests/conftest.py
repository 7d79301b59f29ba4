"""Load the profiles of Hypothesis, as for the tests of `conformance`."""

from routelaws.conformance.conftest import pytest_configure  # noqa: F401
