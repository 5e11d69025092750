"""What `import turbopump` offers: its names, and their documentation."""

from __future__ import annotations

import inspect
import pydoc
from typing import get_type_hints

import turbopump
from turbopump import errors
from turbopump.client.sending.outgoing import MessageParts


def test_every_public_name_is_there_and_listed() -> None:
    assert set(turbopump.__all__) <= set(dir(turbopump))
    assert [name for name in turbopump.__all__ if not hasattr(turbopump, name)] == []
    assert sorted(turbopump.__all__) == sorted(set(turbopump.__all__))


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


def test_help_says_where_the_pages_are_and_shows_the_names() -> None:
    text = pydoc.plain(pydoc.render_doc(turbopump))
    assert "turbopump --help" in text
    assert "docs/guide/getting-started.md" in text
    assert "class Delivery" in text


def test_a_send_takes_what_a_message_takes() -> None:
    of_message = inspect.signature(turbopump.Message).parameters.keys() - {"topic", "body"}
    assert of_message == get_type_hints(MessageParts).keys()
