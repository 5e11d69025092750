"""`make lint` finds dead links: tests/links.py, on trees made for it."""

from pathlib import Path

import pytest
from tests.links import Tree, anchors

SOUND = {
    "README.md": "[docs](docs/README.md) [web](https://example.org/gone.md)",
    "docs/README.md": '[a](guide/a.md), [b](guide/b.md "title")',
    "docs/guide/a.md": "# A\n\n[b](b.md#two-words) [here](#a) `store/disk.py` `disk.py` `src/`",
    "docs/guide/b.md": "## `Two` *words*!\n\n```python\n# send.py\n```\n\nRun `python send.py`.",
    "src/store/disk.py": '"""docs/guide/a.md says more."""',
}


def faults(tmp_path: Path, changed: dict[str, str]) -> list[str]:
    """What is wrong with the sound tree, once some of its files are others."""
    for name, text in (SOUND | changed).items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return list(Tree(tmp_path).faults())


def test_a_sound_tree_has_no_faults(tmp_path: Path) -> None:
    assert faults(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"README.md": "one\n\n[x](docs/c.md)"}, "README.md:3: there is no docs/c.md"),
        ({"README.md": "[`x`](docs/c.md)"}, "README.md:1: there is no docs/c.md"),
        (
            {"README.md": "[x](docs/guide/b.md#three)"},
            "README.md:1: docs/guide/b.md has no heading #three",
        ),
        ({"README.md": "# Here\n\n[x](#there)"}, "README.md:3: README.md has no heading #there"),
        ({"README.md": "`store/disc.py`"}, "README.md:1: there is no file store/disc.py"),
        ({"README.md": "`src/shop/`"}, "README.md:1: there is no folder src/shop/"),
        ({"docs/architecture.md": "`shop/`"}, "docs/architecture.md:1: there is no folder shop/"),
        (
            {"README.md": "```\npytest tests/test_gone.py\n```"},
            "README.md:2: there is no file tests/test_gone.py",
        ),
        (
            {"README.md": "```\npython -m bench.gone\n```"},
            "README.md:2: there is no module bench.gone",
        ),
        ({"docs/guide/c.md": "# C"}, "docs/README.md: no link to guide/c.md"),
        (
            {"src/store/disk.py": '"""See docs/gone.md."""'},
            "src/store/disk.py:1: there is no docs/gone.md",
        ),
    ],
)
def test_a_dead_link_is_found(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    assert said in faults(tmp_path, changed)


def test_what_stands_in_an_example_is_no_link(tmp_path: Path) -> None:
    assert faults(tmp_path, {"README.md": "```\n[x](gone.md)\n```\n`[x](gone.md)`"}) == []


def test_anchors_are_those_of_github() -> None:
    page = "# `broker.conf`: 460 keys\n## Über uns\n## A [link](x.md), too\n## A\n### A\n"
    assert anchors(page) == {"brokerconf-460-keys", "über-uns", "a-link-too", "a", "a-1"}
