"""What `turbopump.testing` offers is imported on first use."""

import pytest

import turbopump.testing


def test_every_public_name_can_be_imported_and_no_other() -> None:
    assert [
        name for name in turbopump.testing.__all__ if not hasattr(turbopump.testing, name)
    ] == []
    with pytest.raises(AttributeError, match="has no attribute 'simulate'"):
        _ = turbopump.testing.simulate
