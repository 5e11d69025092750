"""Every Python example of docs/ and README.md compiles, uses names that its page gives, and imports
what is there.

Some pages' examples also run: tests/simulation/world/test_page.py,
tests/unit/client/test_consuming_page.py and others.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
WITH_EXAMPLES = [name for name, text in PAGES.items() if "```python" in text]
EXTRAS = ("turbopump.spark",)
"""Need more than the package itself."""


def examples(text: str) -> Iterator[tuple[int, ast.Module]]:
    """The line before each example, and the example. Raises SyntaxError."""
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, found.start(1))
        tree = compile(
            found[1],
            f"example after line {line}",
            "exec",
            ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        )
        yield line, tree


def given(tree: ast.AST) -> Iterator[str]:
    """Names that an example gives a meaning, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def faults(text: str) -> list[str]:
    """Names that an example uses and neither it nor one above it gives; imports that fail."""
    known = set(dir(builtins))
    found = []
    for line, tree in examples(text):
        known |= set(given(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in known:
                found.append(f"line {line + node.lineno}: {node.id} is given nowhere above")
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turbopump"):
                found += [f"line {line + node.lineno}: {name}" for name in missing(node)]
    return found


def missing(node: ast.ImportFrom) -> list[str]:
    """What a module of ours has not."""
    assert node.module is not None
    if node.module.startswith(EXTRAS):
        return []
    try:
        module = importlib.import_module(node.module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("turbopump"):
            raise
        return []  # an extra that is not installed here: `make test` looks where all are
    return [
        f"{node.module} has no {name.name}" for name in node.names if not hasattr(module, name.name)
    ]


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_of_a_page_compile_and_use_what_it_gives(page: str) -> None:
    assert faults(PAGES[page]) == []


def test_no_example_is_overlooked() -> None:
    for text in PAGES.values():
        assert len(re.findall(r"^```[ \t]*py", text, re.MULTILINE)) == len(list(examples(text)))


def test_faults_are_found() -> None:
    page = (
        "```python\nimport os\nfrom turbopump import Producer, "
        "Nobody\n```\n\n```python\nawait os.send(when)\n```\n"
    )
    assert faults(page) == [
        "line 3: turbopump has no Nobody",
        "line 7: when is given nowhere above",
    ]
    with pytest.raises(SyntaxError, match="bytes can only contain"):
        faults('```python\nb"…"\n```\n')


def test_the_page_of_versions_has_the_lowest_version_of_each_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"], *(one for name in extras for one in extras[name])]
    lowest = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(declared), re.MULTILINE))
    table = PAGES["docs/reference/versions.md"].lower()
    shown = dict(re.findall(r"^\| ([\w-]+)[^|]*\| ([\d.]+)", table, re.MULTILINE))
    assert lowest.items() <= shown.items()
