"""How big the house is, and how its modules hang together: ``python tests/house.py [source]``.

For each room of ``src/turbopump``: files, lines, import lines, modules that exactly one other
module imports, and circles. Imports for type checkers only, and those inside functions, do not
count for circles.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"


@dataclass
class Module:
    """One module: its ``room`` is the folder below the package. ``imports`` are the modules it
    needs when it is imported, ``mentions`` all that it imports anywhere."""

    name: str
    room: str
    lines: int
    import_lines: int
    imports: set[str] = field(default_factory=set)
    mentions: set[str] = field(default_factory=set)


def modules(source: Path = SOURCE) -> dict[str, Module]:
    """Every module below ``source``, by its dotted name."""
    files = {dotted(file.relative_to(source)): file for file in sorted(source.rglob("*.py"))}
    found = {}
    for name, file in files.items():
        text = file.read_text()
        tree = ast.parse(text)
        parts = name.split(".")
        room = parts[1] if len(parts) > 2 or (file.name == "__init__.py" and len(parts) > 1) else ""
        module = found[name] = Module(name, room, text.count("\n"), 0)
        at_import = set(map(id, needed_at_import(tree)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert node.end_lineno is not None
                module.import_lines += node.end_lineno - node.lineno + 1
                targets = set(imported(node, files.keys())) - {name}
                module.mentions |= targets
                if id(node) in at_import:
                    module.imports |= targets
    return found


def dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def needed_at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module that run when it is imported, classes' bodies left out."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        statement = todo.pop()
        yield statement
        if isinstance(statement, ast.Try):
            todo += statement.body
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.unparse(statement.test):
            todo += statement.body + statement.orelse


def imported(node: ast.Import | ast.ImportFrom, known: Collection[str]) -> Iterator[str]:
    """Which of the ``known`` modules a statement imports."""
    for alias in node.names:
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        inside = f"{module}.{alias.name}"
        yield from (name for name in ([inside] if inside in known else [module]) if name in known)


def with_one_importer(found: dict[str, Module]) -> list[str]:
    """Modules that exactly one other imports, and that one is in their own room."""
    importers = Counter(target for module in found.values() for target in module.mentions)
    return sorted(
        target
        for module in found.values()
        for target in module.mentions
        if importers[target] == 1 and found[target].room == module.room
    )


def circles(found: dict[str, Module]) -> list[list[str]]:
    """Groups of modules that need each other to be imported (strongly connected components)."""
    reach: dict[str, set[str]] = {}
    for name in found:
        seen: set[str] = set()
        todo = list(found[name].imports)
        while todo:
            target = todo.pop()
            if target not in seen:
                seen.add(target)
                todo += found[target].imports
        reach[name] = seen
    groups = {
        frozenset({name} | {other for other in reach[name] if name in reach[other]})
        for name in found
        if name in reach[name]
    }
    return sorted(sorted(group) for group in groups)


def main() -> None:
    found = modules(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
    alone = with_one_importer(found)
    print(f"{'room':12} {'files':>6} {'lines':>7} {'imports':>8} {'one importer':>13}")
    for room in [*sorted({module.room for module in found.values()}), None]:
        those = [each for each in found.values() if room is None or each.room == room]
        print(
            f"{'all' if room is None else room or '(top)':12} {len(those):6,} "
            f"{sum(each.lines for each in those):7,} "
            f"{sum(each.import_lines for each in those):8,} "
            f"{sum(room is None or found[name].room == room for name in alone):13,}"
        )
    for circle in circles(found):
        print("circle:", " ".join(circle))


if __name__ == "__main__":
    main()
