"""The reference page of client settings says what the settings classes say."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest
from tests.unit.client.settings_page import PAGE, SECTIONS, page


def test_the_page_of_client_settings_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert page(text) == text, (
        "docs/reference/client-settings.md is stale: python -m tests.unit.client.settings_page"
    )


@pytest.mark.parametrize("kind", {kind for kind, _ in SECTIONS.values()})
def test_the_default_of_every_setting_fits_its_rule(kind: type) -> None:
    for known in fields(kind):
        if "rule" in known.metadata and known.default is not MISSING:
            known.metadata["rule"].check(known.name, known.default)
