"""TLS in the words of Apache's system properties."""

from pathlib import Path

import pytest

from turbopump.config.broker_config import load_broker_config
from turbopump.config.namesrv_config import load_namesrv_config
from turbopump.config.setting import effective
from turbopump.config.tls import ClientAuth, ClientTls, ServerTls, TlsConfig, TlsMode, with_tls_file
from turbopump.errors import ConfigError

APACHES = """
tls.test.mode.enable=false
tls.server.need.client.auth=require
tls.server.keyPath=/etc/rocketmq/server.key
tls.server.keyPassword=s3same
tls.server.certPath=/etc/rocketmq/server.pem
tls.server.authClient=true
tls.server.trustCertPath=/etc/rocketmq/ca.pem
tls.client.trustCertPath=/etc/rocketmq/ca.pem
tls.client.authServer=false
"""


def test_a_file_of_apache_s_is_read_and_wins(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(APACHES)
    conf = tmp_path / "server.conf"
    conf.write_text(
        f"tls.server.mode=enforcing\ntls.config.file={file}\ntls.server.certPath=other.pem\n"
    )
    for config in (load_broker_config(conf), load_namesrv_config(conf)):
        assert config.server_tls == ServerTls(
            mode=TlsMode.ENFORCING,
            certificate="/etc/rocketmq/server.pem",
            key="/etc/rocketmq/server.key",
            key_password="s3same",
            client_auth=ClientAuth.REQUIRE,
            trust="/etc/rocketmq/ca.pem",
        )
        assert config.tls_of_clients() == ClientTls(trust="/etc/rocketmq/ca.pem", verify=False)
        assert "s3same" not in f"{config!r} {effective(config)}"


@pytest.mark.parametrize("line", ["tls.enable=true", "useTLS=true"])
def test_a_broker_speaks_tls_to_name_servers_if_it_is_told(tmp_path: Path, line: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(line)
    assert load_broker_config(conf).client_tls == ClientTls()
    assert load_broker_config().client_tls is None


def test_an_enforcing_broker_does_so_anyway(tmp_path: Path) -> None:
    config = load_broker_config(
        None, {"tls_server_mode": TlsMode.ENFORCING, "tls_server_cert_path": "server.pem"}
    )
    assert config.client_tls == ClientTls()


def test_safer_than_apache_s_unless_it_is_said_otherwise() -> None:
    config = TlsConfig()
    assert config.tls_of_clients() == ClientTls(verify=True, check_host_name=True)
    assert with_tls_file({"a": "b"}) == {"a": "b"}


def test_what_a_client_cannot_use_is_refused_by_name() -> None:
    for name, value in (("trust", 5), ("key", ""), ("verify", "no"), ("check_host_name", 1)):
        with pytest.raises(ConfigError, match=f"{name}="):
            ClientTls(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="key_password must be text, or None"):
        ClientTls(key_password=5)  # type: ignore[arg-type]
