"""Fixtures that several tests of clients share."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def spans() -> Iterator[Any]:
    """``Spans`` of this test: what its OpenTelemetry has recorded."""
    from tests.unit.client.spans import Spans  # opentelemetry need not be installed

    made = Spans()
    yield made
    made.provider.shutdown()
    made.meter_provider.shutdown()
