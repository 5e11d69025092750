"""What `import turbopump` offers: its names, and the pages that their documentation points at."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import get_type_hints

import turbopump
from turbopump import errors
from turbopump.client.sending.outgoing import MessageParts

ROOT = Path(__file__).parents[2]
PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")


def test_every_public_name_is_there_and_listed() -> None:
    assert set(turbopump.__all__) <= set(dir(turbopump))
    assert [name for name in turbopump.__all__ if not hasattr(turbopump, name)] == []
    assert sorted(turbopump.__all__) == sorted(set(turbopump.__all__))


def test_clients_need_no_module_that_only_unix_has() -> None:
    program = """
import sys
for name in ("fcntl", "pwd", "resource", "termios"):
    sys.modules[name] = None
import turbopump, turbopump.blocking as blocking
names = [name for name in turbopump.__all__ if hasattr(turbopump, name)]
for kind in (turbopump.PushConsumer, blocking.PushConsumer, turbopump.SimpleConsumer):
    kind("127.0.0.1:9876", group="g", topic="T")
print(len(names))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", f"{len(turbopump.__all__)}\n")


def test_names_that_are_not_public_are_not_listed() -> None:
    assert [name for name in dir(turbopump) if name not in turbopump.__all__] == [
        name for name in dir(turbopump) if name.startswith("__") and name != "__version__"
    ]


def test_every_error_is_a_public_name() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.TurbopumpError)
    }
    assert len(kinds) > 30
    for name, kind in kinds.items():
        assert getattr(turbopump, name) is kind
        assert name in (errors.__doc__ or "")


def test_what_a_handler_gets_is_a_public_name() -> None:
    assert issubclass(turbopump.Delivery, turbopump.ReceivedMessage)
    assert {"done", "retry", "attempt"} <= set(dir(turbopump.Delivery))


def installed(page: str) -> bool:
    """Whether a page is there, and goes into the wheel."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    return (ROOT / page).is_file() and any(
        f"share/doc/turbopump/{Path(page).parent.relative_to('docs')}".rstrip("/.") == folder
        and any(fnmatch(page, pattern) for pattern in patterns)
        for folder, patterns in data.items()
    )


def test_pages_that_the_source_names_are_installed() -> None:
    named = {
        (page, str(file.relative_to(ROOT)))
        for file in (ROOT / "src").rglob("*.py")
        for page in PAGE.findall(file.read_text())
    }
    assert len(named) > 20
    assert [(page, file) for page, file in sorted(named) if not installed(page)] == []


def test_all_pages_are_installed() -> None:
    pages = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not installed(page)] == []
    assert not installed("docs/guide/" + "nowhere.md")


def test_help_says_where_the_pages_are_and_shows_the_names() -> None:
    text = pydoc.plain(pydoc.render_doc(turbopump))
    assert "share/doc/turbopump" in text
    assert "docs/guide/getting-started.md" in text
    assert "class Delivery" in text


def test_a_send_takes_what_a_message_takes() -> None:
    of_message = inspect.signature(turbopump.Message).parameters.keys() - {"topic", "body"}
    assert of_message == get_type_hints(MessageParts).keys()
