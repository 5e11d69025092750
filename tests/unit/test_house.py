"""The house has no circles, and the script that counts them is right."""

from pathlib import Path

from tests.house import circles, modules, mutual_subrooms, with_one_importer


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = modules()
    assert "turbopump.broker.broker" in found
    assert circles(found) == []


def test_no_two_subrooms_import_each_other() -> None:
    assert mutual_subrooms(modules()) == {}


def write_package(directory: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        file = directory / "house" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_circles_and_modules_with_one_importer_are_found(tmp_path: Path) -> None:
    write_package(
        tmp_path,
        {
            "__init__": "",
            "one": "from house.two import b\n",
            "two": "import house.three\n",
            "three": "try:\n    from house import one\nexcept ImportError:\n    pass\n",
            "four": "import typing\nif typing.TYPE_CHECKING:\n    from house import six\n",
            "five": "def f():\n    import house.four\n    from house import two\n",
            "six": "from house import four\n",
        },
    )
    found = modules(tmp_path)
    assert circles(found) == [
        ["house.four", "house.six"],
        ["house.one", "house.three", "house.two"],
    ]
    assert with_one_importer(found) == ["house.one", "house.six", "house.three"]
    assert (found["house.four"].lines, found["house.four"].import_lines) == (3, 2)


def test_subrooms_that_import_each_other_are_found(tmp_path: Path) -> None:
    write_package(
        tmp_path,
        {
            "__init__": "",
            "store/top": "from house.store.log import scanner\n",
            "store/log/scanner": "from house.store import top\n",
            "store/log/dispatcher": "from house.store.queues import unit\n",
            "store/queues/unit": "from house.store.index import file\n",
            "store/queues/reader": "from house.store.log.scanner import walk\n",
            "store/index/file": "from house.broker.log import lines\n",
            "broker/log/lines": "from house.store.index import file\n",
        },
    )
    assert mutual_subrooms(modules(tmp_path)) == {
        ("store/log", "store/queues"): [
            "house.store.log.dispatcher imports house.store.queues.unit",
            "house.store.queues.reader imports house.store.log.scanner",
        ]
    }
