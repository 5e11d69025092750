"""How tests are written, so that it stays: stories are not nested in tests, helpers do not live in
other tests, and tests look at what is public."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

STORIES = ("scenario", "scene", "story")
"""What a story nested in its test was called. It is a coroutine with ``@in_loop`` instead."""

OF_OTHERS = {"_exit", "_gateway", "_jdf", "_jvm", "_replace"}
"""Names that Python, PySpark and py4j have documented or have nothing public for."""

WHOLE_FILES = {
    "simulation/world/loop.py": "an event loop: it stands on asyncio's own private hooks",
    "simulation/world/process.py": "takes the handles of a process out of that loop",
    "simulation/world/test_asyncio_hooks.py": "pins these hooks",
}

LEFT: dict[str, int] = {
    "crash/group_member.py": 2,
    "simulation/test_rebalances.py": 2,
    "simulation/world/test_disk.py": 1,
    "unit/broker/handlers/test_pull.py": 2,
    "unit/broker/pop/test_pop_in_order.py": 1,
    "unit/client/sending/test_back_pressure.py": 7,
    "unit/client/sending/test_faults.py": 1,
    "unit/client/test_closing_a_producer.py": 2,
    "unit/client/test_closing_a_transaction_producer.py": 7,
    "unit/client/test_recall.py": 3,
    "unit/client/test_request_reply.py": 4,
    "unit/client/test_trace.py": 4,
    "unit/client/test_what_functions_raise.py": 1,
    "unit/remoting/test_authorise.py": 1,
    "unit/remoting/test_client.py": 1,
    "unit/store/log/test_parsed_entry.py": 1,
    "unit/store/queues/test_first_units.py": 1,
    "unit/store/repair/test_scrub.py": 1,
    "unit/store/test_kernel_syncs.py": 14,
    "unit/test_loop_thread.py": 1,
}
"""Private attributes that are still looked at, by file. The numbers only go down."""


@dataclass(frozen=True)
class Found:
    """What the rules forbid, as found in a module."""

    nested_stories: list[str]
    imported_tests: list[str]
    private_attributes: list[str]


def found_in(text: str) -> Found:
    """Look through the text of a module. Its tree is gone afterwards: Python's collector would go
    through those of all modules again and again."""
    nodes = list(ast.walk(ast.parse(text)))
    return Found(
        list(nested_stories(nodes)), list(imported_tests(nodes)), private_attributes(nodes)
    )


@pytest.fixture(scope="module")
def files() -> dict[str, Found]:
    """Of every module under ``tests/``, by its path there."""
    return {
        path.relative_to(ROOT).as_posix(): found_in(path.read_text("utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }


def nested_stories(nodes: list[ast.AST]) -> Iterator[str]:
    """Coroutines within functions that are stories by their names."""
    stories = [
        one for one in nodes if isinstance(one, ast.AsyncFunctionDef) and one.name in STORIES
    ]
    if not stories:
        return
    for function in nodes:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(function):
                if inner in stories and inner is not function:
                    yield f"{function.name}: {inner.name} (line {inner.lineno})"


def imported_tests(nodes: list[ast.AST]) -> Iterator[str]:
    """Modules and functions of tests that this module imports."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module.split(".")[0] == "tests":
                parts = [*node.module.split("."), *(alias.name for alias in node.names)]
                yield from (part for part in parts if part.startswith("test_"))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("tests.") and ".test_" in alias.name:
                    yield alias.name


def private_attributes(nodes: list[ast.AST]) -> list[str]:
    """Private attributes of objects whose class is not of this module, a line each."""
    own, seen = set[str](), list[ast.Attribute]()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                own.add(node.attr)
            elif node.attr.startswith("_") and not node.attr.endswith("__"):
                seen.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in seen
        if node.attr not in own | OF_OTHERS
    ]


def test_no_story_is_nested_in_a_test(files: dict[str, Found]) -> None:
    """``@in_loop`` of tests/loops.py runs a test that is a coroutine."""
    found = {path: module.nested_stories for path, module in files.items()}
    assert {path: stories for path, stories in found.items() if stories} == {}


def test_no_test_is_imported_by_another_module(files: dict[str, Found]) -> None:
    """What two tests need lives in a helper module with a name of its own. A test that starts a
    process may name its own module."""
    found = {path: module.imported_tests for path, module in files.items()}
    assert {path: names for path, names in found.items() if names} == {}


def test_tests_look_at_what_is_public(files: dict[str, Found]) -> None:
    """Make what a test has to see public, or the seam an argument; where that is worse, count it
    in ``LEFT``."""
    found = {
        path: module.private_attributes
        for path, module in files.items()
        if path not in WHOLE_FILES and not path.startswith("interop/clients/")
    }
    counts = Counter({path: len(lines) for path, lines in found.items() if lines})
    assert {path: found[path] for path in counts - Counter(LEFT)} == {}, "more than LEFT says"
    assert dict(Counter(LEFT) - counts) == {}, "fewer than LEFT says: lower its numbers"


def test_what_the_rules_forbid_is_found() -> None:
    found = found_in(
        "from tests.unit.test_docs import PAGE\n"
        "import tests.unit.test_docs\n"
        "class Mine:\n"
        "    def __init__(self): self._own = 1\n"
        "def test_it(mine, other):\n"
        "    async def scene(talk): ...\n"
        "    assert (mine._own, other._inner, other.__dict__) == pair._replace(x=1)\n"
    )
    assert found.nested_stories == ["test_it: scene (line 6)"]
    assert found.imported_tests == ["test_docs", "tests.unit.test_docs"]
    assert found.private_attributes == ["line 7: other._inner"]
