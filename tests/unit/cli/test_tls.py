"""`turbopump tls`: certificates for servers that have none."""

import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.remoting.certificates import Pair

from turbopump.cli import main
from turbopump.config.broker_config import load_broker_config
from turbopump.config.namesrv_config import load_namesrv_config
from turbopump.config.tls import TlsMode
from turbopump.remoting.tls import ServerContext
from turbopump.testing.broker_in_loop import BrokerThread


def test_a_pair_is_made_and_the_lines_for_a_server_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(tmp_path / "certs")
    assert main(["tls", "self-signed", directory, "--host", "a.example", "--host", "::1"]) == 0
    told = capsys.readouterr().out
    assert "a certificate for a.example, ::1, until " in told
    conf = tmp_path / "namesrv.conf"
    conf.write_text(told)
    tls = load_namesrv_config(conf).server_tls
    ServerContext(tls)
    broker = load_broker_config(conf)
    assert broker.tls_client_trust_cert_path == tls.certificate
    assert stat.S_IMODE(Path(tls.key).stat().st_mode) == 0o600
    assert main(["tls", "self-signed", directory]) == 2
    assert "tls-key.pem already exists" in capsys.readouterr().err


def test_a_host_that_no_certificate_can_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tls", "self-signed", str(tmp_path), "--host", "größe"]) == 2
    assert "--host größe: expected a name in ASCII or an address" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[BrokerThread, Pair]]:
    """A name server and a broker that take TLS alone."""
    pair = Pair(tmp_path)
    with BrokerThread(
        tls_server_mode=TlsMode.ENFORCING,
        tls_server_cert_path=pair.certificate,
        tls_server_key_path=pair.key,
        tls_client_trust_cert_path=pair.certificate,
    ) as servers:
        yield servers, pair


def test_commands_speak_tls_by_their_options_and_by_the_environment(
    served: tuple[BrokerThread, Pair],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, pair = served
    where = ["-n", servers.namesrv]
    file = tmp_path / "tls.properties"
    file.write_text(f"tls.client.trustCertPath={pair.certificate}\n")
    assert main(["topic", "create", "orders", *where, "--tls-trust", pair.certificate]) == 0
    assert main(["topic", "list", *where, "--tls-config", str(file)]) == 0
    assert "orders" in capsys.readouterr().out
    assert main(["topic", "list", *where]) != 0
    assert main(["topic", "list", *where, "--tls"]) != 0
    assert "certificate is not trusted" in capsys.readouterr().err
    monkeypatch.setenv("TURBOPUMP_TLS_TRUST", pair.certificate)
    assert main(["topic", "list", *where]) == 0
    assert main(["doctor", *where]) == 0
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("TURBOPUMP_TLS_TRUST", Pair(tmp_path / "other").certificate)
    assert main(["topic", "list", *where]) != 0
    monkeypatch.setenv("TURBOPUMP_TLS_TRUST", "/no/file.pem")
    assert main(["topic", "list", *where]) == 2
    assert "TLS: the file /no/file.pem cannot be read" in capsys.readouterr().err


def test_the_doctor_says_what_to_do_where_tls_or_credentials_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, other = Pair(tmp_path), Pair(tmp_path, "other")
    with BrokerThread(
        tls_server_mode=TlsMode.ENFORCING,
        tls_server_cert_path=pair.certificate,
        tls_server_key_path=pair.key,
        tls_client_trust_cert_path=pair.certificate,
        authentication_enabled=True,
        inner_client_authentication_credentials='{"accessKey": "inner", "secretKey": "i"}',
    ) as servers:
        where = ["-n", servers.namesrv]
        for options, says in (
            ([], "or accepts only TLS"),
            (
                ["--tls-trust", other.certificate],
                "or the one that signed it, with --tls-trust FILE",
            ),
            (["--tls-trust", pair.certificate], "give a permitted user with --credentials FILE"),
        ):
            assert main(["doctor", *where, *options]) == 1
            assert says in capsys.readouterr().out
    with BrokerThread() as servers:
        where = ["-n", servers.namesrv, "--tls-trust", pair.certificate]
        assert main(["doctor", *where]) == 1
        assert "its tls.server.certPath is not set" in capsys.readouterr().out


def test_the_doctor_warns_of_a_certificate_that_expires(
    served: tuple[BrokerThread, Pair], capsys: pytest.CaptureFixture[str]
) -> None:
    servers, pair = served
    pair.make(days=20)
    until_shown(servers.namesrv, pair)
    until_shown(servers.broker_address, pair)
    assert main(["doctor", "-n", servers.namesrv, "--tls-trust", pair.certificate]) == 1
    told = capsys.readouterr().out
    assert told.count("its TLS certificate expires on") == 2
    assert "in 19 days: replace it in time" in told
    assert "without a restart" in told


def until_shown(address: str, pair: Pair) -> None:
    """Ask for a server's certificate until it is the one in the file."""
    host, port = address.split(":")
    while ssl.get_server_certificate((host, int(port))) != Path(pair.certificate).read_text():
        pass
