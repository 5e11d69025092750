"""Locations of lakes. A URL is refused before anything is written, and before Spark starts."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turbopump.cli import main
from turbopump.errors import ConfigError
from turbopump.spark import archive as lakes
from turbopump.spark.pipelines import archive, compact, query, replay
from turbopump.spark.pipelines.lake import lake_place

URLS = [
    "s3://bucket/lake",
    "gs://b/l",
    "abfss://c@a.dfs/l",
    "hdfs:///l",
    "file:///tmp/l",
    "dbfs:/l",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "command",
    [
        ["pipeline", "archive", "T", "LAKE"],
        ["pipeline", "compact", "LAKE"],
        ["pipeline", "replay", "LAKE", "T", "U"],
        ["sql", "select 1", "--lake", "LAKE"],
        ["sql", "select 1", "--lake", "kept=LAKE"],
    ],
)
def test_a_command_refuses_a_url(
    url: str,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("LAKE", url) for word in command]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    scheme = url.partition(":")[0]
    assert said == (
        f"turbopump: {url} is not a directory: a lake is a directory on a file system, and "
        f"{scheme} is not supported. Give a path"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", [URLS[0], Path(URLS[0])])
def test_a_function_refuses_a_url(
    url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server: dict[str, Any] = {"name_server": "127.0.0.1:9", "spark": object()}
    for ask in (
        partial(archive, url, ["T"], **server),
        partial(compact, url),
        partial(replay, url, "T", "U", **server),
        partial(query, "select 1", lakes={"lake": url}, **server),
        partial(lakes.files, url),
        partial(lakes.offsets, url),
        partial(lakes.dataset, url),
        partial(lakes.rows, server["spark"], url),
    ):
        with pytest.raises(ConfigError, match=r"s3:/+bucket/lake is not a directory"):
            ask()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["lake", "/a/b", "./s3:x", "C:/lakes", "a b:c", "T:1"])
def test_a_path_stays_one(path: str) -> None:
    assert lake_place(path) == Path(path)


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("pyspark", ["sql", "select 1"]),
        ("pyarrow", ["pipeline", "archive", "T", "L"]),
        ("py4j", ["pipeline", "compact", "L"]),
    ],
)
def test_a_command_without_the_extra_says_so_in_one_sentence(
    missing: str, command: list[str], tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from turbopump.cli import main; "
        f"sys.exit(main({command!r}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    said = f"turbopump: Spark support needs {missing}, which is not installed: pip install "
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(said)
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("create table x as select 1", "CREATE"),
        ("insert into t values (1)", "INSERT INTO"),
        (" -- select\ndrop table x", "DROP"),
        ("/* select */ set a=b", "SET"),
        ("with a as (select 1) insert into t select * from a", "INSERT INTO"),
        ("from t insert overwrite u select *", "INSERT OVERWRITE"),
        ("", "an empty text"),
        ("  -- nothing", "an empty text"),
    ],
)
def test_what_is_no_query_is_refused_before_spark_starts(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", text]) == 2
    assert f"{said} is not a query: a query begins with SELECT, WITH" in capsys.readouterr().err
