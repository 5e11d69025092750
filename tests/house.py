"""How big the house is, and how its modules hang together: ``python tests/house.py [source]``.

For each room of ``src/turbopump``: files, lines, import lines and modules that exactly one other
module imports; then circles of modules, and sub-rooms that import each other. Imports for type
checkers count for both, those inside functions for neither.
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
    """One module: its ``room`` is the folder below the package, its ``subroom`` the folder below
    the room. ``imports`` are the modules that it imports at its top, ``mentions`` all that it
    imports anywhere."""

    name: str
    room: str
    subroom: str
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
        folders = [*file.relative_to(source).parts[1:-1], "", ""]
        module = found[name] = Module(name, folders[0], folders[1], text.count("\n"), 0)
        at_top = set(map(id, statements_at_top(tree)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert node.end_lineno is not None
                module.import_lines += node.end_lineno - node.lineno + 1
                targets = set(imported(node, files.keys())) - {name}
                module.mentions |= targets
                if id(node) in at_top:
                    module.imports |= targets
    return found


def dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements_at_top(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module outside its functions and classes, also those that only type
    checkers read."""
    todo: list[ast.stmt] = list(tree.body)
    while todo:
        statement = todo.pop()
        yield statement
        if isinstance(statement, ast.Try):
            todo += statement.body
        elif isinstance(statement, ast.If):
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
    """Groups of modules that import each other (strongly connected components)."""
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


def mutual_subrooms(found: dict[str, Module]) -> dict[tuple[str, str], list[str]]:
    """Pairs of sub-rooms of one room that import each other, with the imports of both directions.
    The files at the top of a room are no sub-room: they may import all of them and be imported."""
    between: dict[tuple[str, str], list[str]] = {}
    for module in found.values():
        for target in sorted(module.imports):
            other = found[target]
            if module.subroom and other.subroom and other.room == module.room:
                pair = (f"{module.room}/{module.subroom}", f"{other.room}/{other.subroom}")
                between.setdefault(pair, []).append(f"{module.name} imports {target}")
    return {
        (one, two): sorted(between[one, two] + between[two, one])
        for one, two in sorted(between)
        if one < two and (two, one) in between
    }


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
    for (one, two), imports in mutual_subrooms(found).items():
        print(f"{one} and {two} import each other:", *imports, sep="\n    ")


if __name__ == "__main__":
    main()
