"""Cost of access control per request: sends of 1 KiB, in frames as Java's client writes them. They
are handled with authentication off, on, and with a bare `hmac.digest` of the same bytes in its
place.

Two rules. One process, no network and no store: the handler answers at once, so the check is the
only difference within a round. Like is compared with like: the check in a request with a digest in
a request, and the check in a loop with a digest in a loop, because in a loop all code and data stay
in the processor's cache. The result also has the cost of a check in a request compared with a
digest in a loop.
"""

import asyncio
import hmac
import json
import sys
import time
from collections.abc import Callable
from statistics import median

import click

from turbopump.auth.access_control import AccessControl, AccessSettings
from turbopump.auth.accounts import Accounts, User
from turbopump.auth.policies import Action, Decision, Entry, Policies, Resource
from turbopump.auth.signatures import Credentials, RequestSigner, signed_content
from turbopump.compiled import KIND
from turbopump.protocol.frame import frame_head
from turbopump.protocol.requests.send import SendMessageReply, SendMessageV2
from turbopump.remoting.router import HELD, Authorise, Outcome, RequestContext, Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.wire import Wire

GOAL = 2.0
SECRET = "a long and random secret"
FIELDS = {
    "a": "orders-producer",
    "b": "orders",
    "c": "TBW102",
    "d": "8",
    "e": "2",
    "f": "0",
    "g": "1764123456789",
    "h": "0",
    "i": "KEYS\x01order-17\x02UNIQ_KEY\x017F0000010ABC18B4AAC2123456780001\x02TAGS\x01paid",
    "j": "0",
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
BODY = b"x" * 1024


class _Wire(asyncio.Transport):
    """Takes what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})

    def write(self, data: object) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        pass


def frame_of(fields: dict[str, str]) -> bytes:
    header = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 7}
    header |= {"serializeTypeCurrentRPC": "JSON", "version": 479}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return frame_head(len(text), len(BODY)) + text + BODY


def connection(access: Authorise | None) -> Wire:
    """To a server whose handler of sends answers at once."""
    answer = frame_head(2, 0) + b"{}"
    router = Router(access)
    router.add(SendMessageV2, lambda _request, _context: answer)
    made = ServedRequests(router).wire
    made.connection_made(_Wire())
    return made


def asked(frame: bytes) -> tuple[SendMessageV2, RequestContext]:
    """A request as a server is asked for it."""
    seen: list[tuple[SendMessageV2, RequestContext]] = []
    router = Router()

    def note(request: SendMessageV2, context: RequestContext) -> Outcome[SendMessageReply]:
        seen.append((request, context))
        return HELD

    router.add(SendMessageV2, note)
    made = ServedRequests(router).wire
    made.connection_made(_Wire())
    made.data_received(frame)
    return seen[0]


def microseconds(call: Callable[[], object], count: int) -> float:
    """CPU time of one call."""
    started = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - started) / count * 1e6


@click.command()
@click.option("--rounds", default=15, show_default=True)
@click.option("--count", default=4000, show_default=True, help="Requests of a window.")
def main(rounds: int, count: int) -> None:
    """Measure; exit status 1 where a check costs more than it may."""
    sys.exit(asyncio.run(measured(rounds, count)))


async def measured(rounds: int, count: int) -> int:
    allowed = Entry(Resource.parse("Topic:orders"), frozenset({Action.PUB}), Decision.ALLOW)
    users = {"ann": User("ann", SECRET)}
    accounts = Accounts(users, {"ann": Policies([allowed])})
    access = AccessControl(accounts, AccessSettings(), lambda: ("DefaultCluster",))
    fields = RequestSigner(Credentials("ann", SECRET))(FIELDS, BODY)
    content = signed_content(fields, BODY, 479)
    secret, signed, unsigned = SECRET.encode(), frame_of(fields), frame_of(FIELDS)
    off, on = connection(None), connection(access)

    def bare(_request: object, _context: object) -> None:
        hmac.digest(secret, content, "sha1")

    hmac_alone = connection(bare)
    request, context = asked(signed)
    assert access(request, context) is None
    cases: dict[str, Callable[[], object]] = {
        "off, not signed": lambda: off.data_received(unsigned),
        "off, signed": lambda: off.data_received(signed),
        "hmac.digest alone": lambda: hmac_alone.data_received(signed),
        "on, signed": lambda: on.data_received(signed),
        "the check in a loop": lambda: access(request, context),
        "hmac.digest in a loop": lambda: hmac.digest(secret, content, "sha1"),
    }
    windows: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, call in cases.items():
            windows[name].append(microseconds(call, count))
    for name, found in windows.items():
        click.echo(f"{name:22} {median(found):6.2f} µs  ({min(found):.2f}-{max(found):.2f})")
    rows = list(zip(*windows.values(), strict=True))
    ratios = {
        "in a request": [(on - off) / (alone - off) for _, off, alone, on, _, _ in rows],
        "in a loop of its own": [check / digest for *_, check, digest in rows],
    }
    click.echo(f"{KIND}: the check costs, of a bare hmac.digest of the same {len(content):,} bytes")
    for where, found in ratios.items():
        click.echo(
            f"  {median(found):.2f} x ({min(found):.2f}-{max(found):.2f}), both {where}; "
            f"wanted <= {GOAL:.0f}"
        )
    mixed = median((on - off) / digest for _, off, _, on, _, digest in rows)
    click.echo(f"  {mixed:.2f} x, the check in a request and the digest in a loop")
    return 0 if all(median(found) <= GOAL for found in ratios.values()) else 1


if __name__ == "__main__":
    main()
