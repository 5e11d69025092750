"""Public addresses are placeholders, and release/addresses.toml names each file that has one."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from turbopump.documentation import SITE, page_url

ROOT = Path(__file__).parents[3]
ADDRESSES = "release/addresses.toml"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files of a checkout")
def test_every_file_that_spells_the_domain_is_listed() -> None:
    listed = tomllib.loads((ROOT / ADDRESSES).read_text("utf-8"))
    command = ["git", "grep", "--untracked", "-lIF", "-e", listed["domain"]]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert sorted(found.splitlines()) == sorted({ADDRESSES, *listed["files"]})


def test_the_metadata_has_no_address_outside_of_the_domain() -> None:
    domain = tomllib.loads((ROOT / ADDRESSES).read_text("utf-8"))["domain"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    people = [*project["authors"], *project["maintainers"]]
    addresses = [*project["urls"].values(), *(person["email"] for person in people)]
    assert {re.split("@|//", address)[1].split("/")[0] for address in addresses} == {domain}
    assert project["urls"]["Documentation"] == SITE


def test_a_page_has_its_address_on_the_site() -> None:
    assert page_url("docs/guide/tls.md") == f"{SITE}guide/tls.html"
    assert page_url("docs/security.md") == f"{SITE}security.html"
