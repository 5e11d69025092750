"""Names of versions, as Apache's enumeration has them."""

import pytest

from turbopump.protocol.codes import V3_0_11, V4_9_4, V5_0_0, V5_3_3, version_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (V3_0_11, "V3_0_0"),
        (46, "V3_1_0_SNAPSHOT"),
        (87, "V3_3_1"),
        (193, "V3_8_9"),
        (V4_9_4, "V4_9_4"),
        (V5_0_0 - 1, "V5_0_0_SNAPSHOT"),
        (V5_3_3, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (99_999, "HIGHER_VERSION"),
    ],
)
def test_a_version_has_apaches_name(number: int, name: str) -> None:
    assert version_name(number) == name
