"""Settings of the connection to etcd."""

from __future__ import annotations

import pytest

from turbopump.config.controller_config import load_controller_config
from turbopump.config.etcd import Etcd, EtcdConfig
from turbopump.config.tls import ClientTls
from turbopump.errors import ConfigError


def test_without_endpoints_there_is_no_etcd() -> None:
    assert EtcdConfig().etcd is None
    assert EtcdConfig(etcd_endpoints=" ; ").etcd is None


def test_endpoints_become_members() -> None:
    config = EtcdConfig(
        etcd_endpoints="https://a:2379/; https://[::1]:2380",
        etcd_user="u",
        etcd_password="p",
        etcd_trust_cert_path="ca.pem",
        etcd_lease_seconds=5,
    )

    assert config.etcd == Etcd((("a", 2379), ("::1", 2380)), ClientTls(trust="ca.pem"), "u", "p", 5)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"etcd_endpoints": "a:2379"}, "expected http://HOST:PORT or https://HOST:PORT"),
        ({"etcd_endpoints": "http://a"}, "has no port"),
        ({"etcd_endpoints": "http://a:1,http://b:1"}, "contains a comma: separate several with ;"),
        ({"etcd_endpoints": "http://a:1;https://b:1"}, "expected either http:// or https:// for"),
        ({"etcd_endpoints": "http://a:1", "etcd_cert_path": "c"}, "which needs https://"),
        ({"etcd_endpoints": "http://a:1", "etcd_password": "p"}, "which needs etcdUser"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        _ = EtcdConfig(**settings).etcd  # type: ignore[arg-type]


def test_several_controllers_need_etcd() -> None:
    peers = {"controller_d_leger_peers": "n0-127.0.0.1:1;n1-127.0.0.1:2"}
    with pytest.raises(ConfigError, match="agree through etcd, and etcdEndpoints is empty"):
        load_controller_config(None, peers)

    config = load_controller_config(None, {**peers, "etcd_endpoints": "http://127.0.0.1:2379"})
    assert config.listen_port == 1
