"""Dead links of the docs: ``python tests/links.py``, a part of ``make lint``.

Looked at are README.md, its neighbours, and every page below docs/, examples/ and tests/. A fault
is

- a link to a file that is not there, or to a heading that its page does not have (``#anchor`` in
  GitHub's form);
- a Python file that a page names in backticks and the tree does not have. ``disk/disk.py`` may be
  anywhere in the tree; ``send.py`` may also be an example of the page that begins ``# send.py``;
- a Python file or module of the tree that a command of a page names (``pytest tests/…/test_x.py``,
  ``python -m bench.recovery``) and the tree does not have;
- a folder of the tree (``src/…/``, ``tests/…/``; in docs/architecture.md any) that is not there;
- a page of docs/ that docs/README.md does not link to;
- a page that code names (``docs/architecture.md``) and that is not there.

Addresses on the web are not asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INDEX = "docs/README.md"
SITE_INDEX = "docs/index.md"
"""First page of the site, which includes the index."""
ANY_FOLDER = ("docs/architecture.md",)
CODE = ("src", "tests", "bench", "examples")
TOP_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "changes/README.md")
TOP = ("README.md", "CHANGELOG.md", "Makefile", "setup.py", "pyproject.toml")

LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^ *\2[`~]* *$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(`+)(.+?)(?<!`)\1(?!`)", re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)
PYTHON_FILE = re.compile(r"^((?:[\w-]+/)*[\w-]+\.pyx?)(?:::\w+)?$")
FOLDER = re.compile(r"^(?:[\w-]+/)+$")
COMMANDED = re.compile(r"(?<![\w./-])(?:src|tests|bench|examples)/[\w/-]+\.pyx?\b")
MODULE = re.compile(r"python3? -m ((?:turbopump|bench|tests)(?:\.\w+)*)")
NAMED_IN_CODE = re.compile(r"(?<![\w./-])docs/(?:[\w-]+/)*[\w-]+\.(?:md|json)\b")


def without_examples(text: str) -> str:
    """The page with empty lines in the place of its code blocks: what is in them is no link."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: lower case, no punctuation, hyphens
    for spaces, a number behind those that were there before."""
    made: set[str] = set()
    for heading in HEADING.findall(without_examples(text)):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number, anchor = 0, plain
        while anchor in made:
            number += 1
            anchor = f"{plain}-{number}"
        made.add(anchor)
    return made


class Tree:
    """The files of a checkout, and what is wrong with what its pages name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pages = [root / name for name in TOP_PAGES]
        for folder in ("docs", "examples", "tests"):
            self.pages += sorted((root / folder).rglob("*.md"))
        self.pages = [page for page in self.pages if page.is_file()]
        sources = [path for folder in CODE for path in (root / folder).rglob("*.py*")]
        self.sources = [path for path in sources if path.suffix in (".py", ".pyx", ".pyi")]
        self.sources += [root / name for name in TOP if (root / name).is_file()]
        self.files = {f"/{path.relative_to(root)}" for path in self.sources}
        self.folders = {f"{parent}/" for file in self.files for parent in Path(file).parents}
        self.anchors = cache(lambda page: anchors(page.read_text("utf-8")))

    def faults(self) -> Iterator[str]:
        """Each as ``page:line: what``."""
        for page in self.pages:
            name = str(page.relative_to(self.root))
            text = page.read_text("utf-8")
            prose = without_examples(text)
            faults = {
                *self._links(page, prose),
                *self._paths(name, text, prose),
                *self._commands(text),
            }
            for line, fault in sorted(faults):
                yield f"{name}:{line}: {fault}"
        yield from self._not_in_the_index()
        yield from self._named_in_code()

    def _links(self, page: Path, prose: str) -> Iterator[tuple[int, str]]:
        hidden = SPAN.sub(lambda found: " " * len(found[0]), prose)
        for found in LINK.finditer(hidden):
            target = found[1]
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            line = prose.count("\n", 0, found.start()) + 1
            if not file.exists():
                yield line, f"there is no {target}"
            elif anchor and (file.suffix != ".md" or anchor not in self.anchors(file)):
                yield line, f"{path or page.name} has no heading #{anchor}"

    def _paths(self, name: str, text: str, prose: str) -> Iterator[tuple[int, str]]:
        examples = set(re.findall(r"^# ([\w/-]+\.py)$", text, re.MULTILINE))
        for found in SPAN.finditer(prose):
            line = prose.count("\n", 0, found.start()) + 1
            for word in found[2].split():
                file = PYTHON_FILE.match(word)
                if file and file[1] not in examples and not _ends(self.files, file[1]):
                    yield line, f"there is no file {file[1]}"
                ours = name in ANY_FOLDER or word.startswith(tuple(f"{top}/" for top in CODE))
                if ours and FOLDER.match(word) and not _ends(self.folders, word):
                    yield line, f"there is no folder {word}"

    def _commands(self, text: str) -> Iterator[tuple[int, str]]:
        for found in COMMANDED.finditer(text):
            if not (self.root / found[0]).is_file():
                yield text.count("\n", 0, found.start()) + 1, f"there is no file {found[0]}"
        for found in MODULE.finditer(text):
            path = found[1].replace(".", "/")
            ends = [f"{path}.py", f"{path}/__main__.py"]
            if not {f"/{top}{end}" for top in ("", "src/") for end in ends} & self.files:
                yield text.count("\n", 0, found.start()) + 1, f"there is no module {found[1]}"

    def _not_in_the_index(self) -> Iterator[str]:
        index, site_index = self.root / INDEX, self.root / SITE_INDEX
        text = index.read_text("utf-8") if index.is_file() else ""
        listed = {
            (index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(text)
        }
        for page in sorted((self.root / "docs").rglob("*.md")):
            if page not in (index, site_index) and page not in listed:
                yield f"{INDEX}: no link to {page.relative_to(index.parent)}"

    def _named_in_code(self) -> Iterator[str]:
        for path in self.sources:
            if path.name == "test_links.py":  # it makes trees of its own
                continue
            text = path.read_text("utf-8")
            for found in NAMED_IN_CODE.finditer(text):
                if not (self.root / found[0]).exists():
                    line = text.count("\n", 0, found.start()) + 1
                    yield f"{path.relative_to(self.root)}:{line}: there is no {found[0]}"


def _ends(paths: Iterable[str], end: str) -> bool:
    return any(path.endswith(f"/{end}") for path in paths)


if __name__ == "__main__":
    found = list(Tree(ROOT).faults())
    print("\n".join(found) or "no dead links")
    sys.exit(1 if found else 0)
