"""docs/reference/request-codes.md: `python -m tests.unit.request_codes_page >
docs/reference/request-codes.md`.

One rule: nothing is said in the page that is not in the requests' declarations, in the tables of
answers, which a test holds against servers, or in the words below.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from tests.unit.every_code import (
    BROKER_ANSWERS,
    CONTROLLER_ANSWERS,
    DECLARED,
    NAMESRV_ANSWERS,
    SPOILT,
    Answers,
)

from turbopump.auth.rules import RULES
from turbopump.broker.handlers.unserved import UNSERVED
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request

TO_CLIENTS: Final = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)
"""What a client answers to a broker."""
OF_ACCESS_CONTROL: Final = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)
"""Answered where access control is on (tests/unit/auth), refused with 1 where it is off."""

_UNUSED: Final = "nothing of Apache's 5.3.3 answers it"
_CONTAINER: Final = "only a broker container answers it"
_JRAFT: Final = "an entry in the log of Apache's controllers, which is never sent"
NOWHERE: Final[Mapping[int, str]] = {
    **dict.fromkeys((13, 22, 23, 27, 47, *range(209, 215), 301, 302), _UNUSED),
    **dict.fromkeys((902, 903), _CONTAINER),
    **dict.fromkeys(range(1014, 1019), _JRAFT),
}
"""Request code to why it is refused with 3, as by Apache's broker and name server."""

_PREFACE: Final = """# Request codes

Written by `python -m tests.unit.request_codes_page > docs/reference/request-codes.md`; a test tries
each code on running servers, and checks that the page is up to date.

All CODES request codes of RocketMQ 5.3.3, and what our servers answer. The response codes are those
of [errors](errors.md#response-codes):

* **good**: a request that names what there is.
* **missing**: each required field (in bold) left out in turn.
* **unreadable**: a word where a number is expected; half of a JSON body.
* **names**: names that nothing can have (`../..`, control characters).
* **low**, **high**: the lowest and the highest 32-bit number in each field that is a number.
* **body**: a body of noise.
* **who may**: what a user needs where access control is on; see [access rules](access-rules.md).

`-`: the request has nothing of the kind. A request that is refused has changed nothing. The remark
of an answer says what is wrong. A 0 for an odd request means that it asks for nothing (an offset in
a queue that is not there), or that any value will do (the body of a message).

A code that is not in this page is refused with 3.
"""


def page() -> str:
    """The text of the page."""
    lines = [_PREFACE.replace("CODES", str(len(RequestCode)))]
    lines += _answered("A broker answers", BROKER_ANSWERS)
    lines += _answered("A name server answers", NAMESRV_ANSWERS)
    lines += _answered("A controller answers", CONTROLLER_ANSWERS)
    lines += [
        "## A broker answers where access control is on",
        "",
        "Elsewhere it refuses them with 1.",
        "",
        "| code | name | fields | what it asks | who may |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {code} | `{_name(code)}` | {_fields(code)} | {_about(code)} | {RULES[code].text} |"
        for code in OF_ACCESS_CONTROL
    ]
    lines += [
        "",
        "## A client answers",
        "",
        "| code | name | fields | what it asks |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {code} | `{_name(code)}` | {_fields(code)} | {_about(code)} |"
        for code in sorted(TO_CLIENTS)
    ]
    lines += ["", "## Refused with 1 by a broker", "", "| code | name | because |", "|---|---|---|"]
    lines += [f"| {code} | `{_name(code)}` | {UNSERVED[code]} |" for code in sorted(UNSERVED)]
    lines += [
        "",
        "## Refused with 3, as by Apache's broker and name server",
        "",
        "| code | name | because |",
        "|---|---|---|",
    ]
    lines += [f"| {code} | `{_name(code)}` | {NOWHERE[code]} |" for code in sorted(NOWHERE)]
    return "\n".join(lines) + "\n"


def _answered(title: str, table: Answers) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    columns = " | ".join(("good", "missing", "unreadable", "names", "low", "high", "body"))
    yield f"| code | name | fields | what it asks | {columns} | who may |"
    yield "|---|---|---|---|---|" + "---|" * (1 + len(SPOILT))
    for code, found in sorted(table.items()):
        shown = " | ".join(found)
        yield (
            f"| {code} | `{_name(code)}` | {_fields(code)} | {_about(code)} | {shown} "
            f"| {RULES[code].text} |"
        )
    yield ""


def _name(code: int) -> str:
    return RequestCode(code).name


def _fields(code: int) -> str:
    type_ = DECLARED[code]
    common = {field.name for field in msgspec.structs.fields(Request)}
    own = [field for field in msgspec.structs.fields(type_) if field.name not in common]
    shown = [f"**{field.encode_name}**" if field.required else field.encode_name for field in own]
    if type_.body is not None:
        shown.append(f"body: {type_.body.__name__}")
    return ", ".join(shown)


def _about(code: int) -> str:
    """The first sentence of a declaration."""
    text = " ".join((inspect.getdoc(DECLARED[code]) or "").split())
    first, dot, _rest = text.partition(". ")
    return (first + dot).strip().replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
