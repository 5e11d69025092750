"""An sdist has every file that git tracks, and the same bytes every time; zig may abort once."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from release.building import same_bytes
from release.zig import ABORTED, run

ROOT = Path(__file__).parents[3]


def archive(names: Sequence[str], made_at: int, owner: str, mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uname, entry.mode = len(name), made_at, owner, mode
            made.addfile(entry, io.BytesIO(name.encode()))
    return out.getvalue()


def test_an_archive_does_not_tell_when_by_whom_and_in_which_order_it_was_made() -> None:
    one = same_bytes(archive(["t/a", "t/b"], 1_700_000_000, "me", 0o664), 1_600_000_000)
    other = same_bytes(archive(["t/b", "t/a"], 1_800_000_000, "you", 0o600), 1_600_000_000)
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(one)) as opened:
        assert opened.getnames() == ["t/a", "t/b"]
        member = opened.getmember("t/b")
        assert (member.mtime, member.uname, member.mode) == (1_600_000_000, "", 0o644)
        file = opened.extractfile(member)
        assert file is not None
        assert file.read() == b"t/b"


def test_a_program_stays_executable() -> None:
    one = same_bytes(archive(["t/run"], 1, "me", 0o775), 2)
    with tarfile.open(fileobj=io.BytesIO(one)) as opened:
        assert opened.getmember("t/run").mode == 0o755


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git lists the files of a checkout")
def test_the_manifest_names_everything_that_git_tracks() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tracked = {name.split("/")[0] for name in listed.stdout.splitlines()}
    manifest = (ROOT / "MANIFEST.in").read_text("utf-8")
    lines = [line.split() for line in manifest.splitlines() if not line.startswith("#")]
    missing = tracked - {name for words in lines for name in words[1:]}
    assert missing == set(), "add them to MANIFEST.in"


def zig(tmp_path: Path, aborts: int) -> list[str | Path]:
    """Return a command that aborts the first times, then exits with 7."""
    program = (
        "import os, pathlib, sys\n"
        f"turns = pathlib.Path({str(tmp_path)!r}, 'turns')\n"
        "turns.open('a').write('x')\n"
        f"os.abort() if turns.stat().st_size <= {aborts} else sys.exit(7)\n"
    )
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(
    ("aborts", "status", "turns", "told"),
    [(0, 7, 1, ""), (1, 7, 2, f"{ABORTED}\n"), (2, 128 + 6, 2, f"{ABORTED}\n")],
)
def test_a_compiler_that_aborts_runs_once_more(
    aborts: int,
    status: int,
    turns: int,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(zig(tmp_path, aborts)) == status
    assert (tmp_path / "turns").stat().st_size == turns
    assert capsys.readouterr().err == told
