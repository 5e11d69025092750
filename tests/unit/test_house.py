"""The house stays small: bounds on its size, and the script that counts."""

from pathlib import Path

from tests.house import circles, modules, with_one_importer


def test_there_are_few_files_and_no_circles() -> None:
    found = modules()
    assert len(found) <= 375
    assert sum(module.lines for module in found.values()) <= 91_600
    assert circles(found) == []


def test_circles_and_modules_with_one_importer_are_found(tmp_path: Path) -> None:
    for name, text in {
        "__init__": "",
        "one": "from house.two import b\n",
        "two": "import house.three\n",
        "three": "try:\n    from house import one\nexcept ImportError:\n    pass\n",
        "four": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house import five\n",
        "five": "def f():\n    import house.four\n    from house import two\n",
    }.items():
        (tmp_path / "house").mkdir(exist_ok=True)
        (tmp_path / "house" / f"{name}.py").write_text(text)
    found = modules(tmp_path)
    assert circles(found) == [["house.one", "house.three", "house.two"]]
    assert with_one_importer(found) == ["house.five", "house.four", "house.one", "house.three"]
    assert (found["house.four"].lines, found["house.four"].import_lines) == (3, 2)
