"""CPython interpreters of this machine, one of each version that Turbopump supports.

They are found on the PATH and among pyenv's versions. A missing one may come from Maven Central:
the presets of JavaCPP have CPython in a jar, with its headers.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from tests.every_python import VERSIONS, find

Version = tuple[int, int]

ROOT: Final = Path(__file__).resolve().parent.parent
JARS: Final = {(3, 14): "org.bytedeco:cpython:3.14.3-1.5.13:jar:linux-x86_64"}
HOME_IN_JAR: Final = "org/bytedeco/cpython/linux-x86_64"
CACHE: Final = ROOT / ".cache" / "pythons"


def interpreters() -> dict[Version, Path]:
    """Return the interpreters that are here, the oldest first."""
    found = {version: find(version) or from_maven(version) for version in VERSIONS}
    return {version: Path(python) for version, python in found.items() if python}


def from_maven(version: Version) -> Path | None:
    """Return the interpreter in a jar, unpacked; None if there is no such jar or no Maven."""
    artifact, maven = JARS.get(version), shutil.which("mvn")
    if artifact is None or maven is None or platform.machine() != "x86_64":
        return None
    home = CACHE / artifact.split(":")[2]
    python = home / HOME_IN_JAR / "bin" / "python{}.{}".format(*version)
    if not python.exists():
        shutil.rmtree(home, ignore_errors=True)
        command = [maven, "-q", "-B", "-ntp", "dependency:copy"]
        command += [f"-Dartifact={artifact}", f"-DoutputDirectory={home}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            print(f"mvn could not fetch {artifact}: {done.stdout[-500:]}", flush=True)
            return None
        unpack(next(home.glob("*.jar")), python)
    return python


def unpack(jar: Path, python: Path) -> None:
    """Unpack a jar beside itself, and make its interpreter executable."""
    with ZipFile(jar) as opened:
        opened.extractall(jar.parent)
    python.chmod(0o755)
