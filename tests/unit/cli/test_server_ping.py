"""`broker ping` and `namesrv ping`: exit code and sentence, also where strangers are refused."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_ports
from tests.unit.remoting.certificates import Pair

from turbopump.cli import main
from turbopump.config.tls import TlsMode
from turbopump.testing.broker_in_loop import BrokerThread

ADMIN: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username": "admin", "password": "s"}',
    "inner_client_authentication_credentials": '{"accessKey": "inner", "secretKey": "i"}',
}
ANSWERS = r"127\.0\.0\.1:\d+ answers after \d+ ms"


class Ping:
    """Runs the command in this process, and returns its exit code, output and errors."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, server: str, *arguments: str) -> tuple[int, str, str]:
        code = main([server, "ping", *arguments])
        told = self._capsys.readouterr()
        return code, told.out, told.err


@pytest.fixture
def ping(capsys: pytest.CaptureFixture[str]) -> Ping:
    return Ping(capsys)


def test_a_server_that_answers_is_exit_code_0(ping: Ping) -> None:
    with BrokerThread() as servers:
        for server, address in ("broker", servers.broker_address), ("namesrv", servers.namesrv):
            code, out, err = ping(server, address, "--timeout", "60")
            assert (code, err) == (0, "")
            assert re.fullmatch(ANSWERS + "\n", out)
            shown = json.loads(ping(server, address, "--output", "json")[1])
            assert (shown["server"], shown["refusal"]) == (address, None)
            assert shown["answer_ms"] > 0
        code, out, err = ping("broker", servers.namesrv)
        assert (code, out) == (1, "")
        assert err == f"turbopump: {servers.namesrv} answers, but it is no broker\n"


def test_a_server_that_is_not_there_is_one_sentence(ping: Ping) -> None:
    address = f"127.0.0.1:{free_ports(0)}"
    for server in "broker", "namesrv":
        code, out, err = ping(server, address)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"turbopump: no connection to {address}: Connection refused")


def test_a_server_that_does_not_answer_in_time_is_one_sentence(ping: Ping) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        code, _, err = ping("broker", address, "--timeout", "0.1")
        assert code == 1
        assert re.match(rf"turbopump: {address} did not answer GetMaxOffset within 0\.\d+ s", err)


def test_an_address_that_is_none_is_wrong_usage(ping: Ping) -> None:
    code, _, err = ping("broker", "here")
    assert code == 2
    assert "here" in err


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[tuple[BrokerThread, Pair]]:
    """Servers that take only TLS, and only requests of their users."""
    pair = Pair(tmp_path)
    with BrokerThread(
        **ADMIN,
        tls_server_mode=TlsMode.ENFORCING,
        tls_server_cert_path=pair.certificate,
        tls_server_key_path=pair.key,
        tls_client_trust_cert_path=pair.certificate,
    ) as servers:
        yield servers, pair


def test_a_refusal_is_an_answer_and_credentials_of_a_user_avoid_it(
    closed: tuple[BrokerThread, Pair], ping: Ping, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servers, pair = closed
    credentials = tmp_path / "user.yml"
    credentials.write_text("accessKey: admin\nsecretKey: s\n")
    tls = ("--tls-trust", pair.certificate)
    for server, address in ("broker", servers.broker_address), ("namesrv", servers.namesrv):
        code, out, _ = ping(server, address, *tls, "--credentials", str(credentials))
        assert (code, "denied" in caplog.text) == (0, False)
        assert re.fullmatch(ANSWERS + "\n", out)
        code, out, _ = ping(server, address, *tls)
        assert code == 0
        assert re.match(ANSWERS + ", with a refusal: access denied: ", out)
        assert "denied user=-" in caplog.text
        caplog.clear()
        assert ping(server, address)[0] == 1, "it speaks no TLS"
