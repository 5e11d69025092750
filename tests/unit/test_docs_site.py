"""The pages of the site that name the public Python API: docs/api."""

import re
from pathlib import Path

import turbopump
import turbopump.blocking
import turbopump.spark
import turbopump.testing

API = Path(__file__).parents[2] / "docs" / "api"
NAMED = re.compile(r"^\.\. auto(?:class|function):: (\w+)$", re.MULTILINE)


def names_after(page: str, module: str) -> set[str]:
    """Return the names that a page documents as names of ``module``."""
    parts = (API / page).read_text().split(".. currentmodule:: ")
    return {name for part in parts if part.split()[0] == module for name in NAMED.findall(part)}


def test_every_public_name_has_an_entry_in_the_api_pages() -> None:
    errors = {name for name in turbopump.__all__ if name.endswith(("Error", "ErrorCode"))}
    pages = ("clients.md", "admin.md", "values.md")
    documented = set().union(*(names_after(page, "turbopump") for page in pages))
    assert set(turbopump.__all__) - errors - {"__version__"} == documented
    assert "automodule:: turbopump.errors" in (API / "errors.md").read_text()


def test_every_blocking_client_has_an_entry() -> None:
    own = {
        name
        for name in turbopump.blocking.__all__
        if getattr(turbopump.blocking, name).__module__.startswith("turbopump.blocking")
    }
    assert own == names_after("blocking.md", "turbopump.blocking")


def test_every_name_of_the_test_and_spark_packages_has_an_entry() -> None:
    assert set(turbopump.testing.__all__) == names_after("testing.md", "turbopump.testing")
    assert set(turbopump.spark.__all__) == names_after("testing.md", "turbopump.spark")
