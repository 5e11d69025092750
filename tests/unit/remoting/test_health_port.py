"""The health of a server, as probes read it."""

import json
from http import HTTPStatus

import pytest
from tests.loops import in_loop
from tests.ports import free_ports

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import ConfigError
from turbopump.remoting.health_port import LIVE, READY, HealthPort
from turbopump.remoting.http_pages import JSON, TEXT, Page, answer_to

REASONS = ["the disk is full", "no name server: ö"]


def page(path: str, reasons: list[str], *, accept: str = "*/*", query: str = "") -> Page:
    health = HealthPort(NamesrvConfig(), lambda: reasons)
    request = f"GET {path}{query} HTTP/1.1\r\nAccept: {accept}\r\n\r\n"
    head, _, body = answer_to(request.encode(), health.pages.pages).head.partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    kinds = dict(field.split(": ") for field in fields)
    return Page(HTTPStatus(int(status.split(" ")[1])), body.decode(), kinds["Content-Type"])


def test_a_server_without_reasons_against_it_is_ready() -> None:
    assert page(READY, []) == Page(HTTPStatus.OK, "ready\n", TEXT)
    assert page(LIVE, REASONS) == Page(HTTPStatus.OK, "alive\n", TEXT)


def test_the_body_has_the_reasons_one_on_a_line() -> None:
    found = page(READY, REASONS)
    assert found == Page(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(REASONS) + "\n", TEXT)


@pytest.mark.parametrize("asked", [{"accept": JSON}, {"query": "?format=json"}])
def test_the_body_is_json_if_asked_for(asked: dict[str, str]) -> None:
    found = page(READY, REASONS, **asked)
    assert (found.status, found.content_type) == (HTTPStatus.SERVICE_UNAVAILABLE, JSON)
    assert json.loads(found.body) == {"ready": False, "reasons": REASONS}
    assert json.loads(page(READY, [], **asked).body) == {"ready": True, "reasons": []}
    assert json.loads(page(LIVE, REASONS, **asked).body) == {"alive": True}


@in_loop
async def test_a_taken_port_is_an_error_of_the_configuration() -> None:
    port = free_ports(0)
    one, other = (HealthPort(NamesrvConfig(health_port=port), list) for _ in range(2))
    await one.open()
    try:
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            await other.open()
    finally:
        one.pages.close()
