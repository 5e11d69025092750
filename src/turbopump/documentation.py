"""Addresses of the documentation's pages, for error texts, log lines and help.

The source names a page by its file in the repository, which `make lint` checks. Users get the
page's address on the site.
"""

from typing import Final

SITE: Final = "https://turbopump.example/"
"""Address of the site, a placeholder: release/addresses.toml."""


def page_url(page: str) -> str:
    """Return the address of a page, given its file, such as ``docs/guide/tls.md``."""
    return SITE + page.removeprefix("docs/").removesuffix(".md") + ".html"
