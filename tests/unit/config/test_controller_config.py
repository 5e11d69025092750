"""Settings of a controller: its address, and the keys that it shares with a name server."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from turbopump.config.controller_config import (
    ControllerConfig,
    load_controller_config,
    load_controller_in_namesrv,
)
from turbopump.config.namesrv_config import load_namesrv_config
from turbopump.config.tls import TlsMode
from turbopump.errors import ConfigError

PEERS = "controllerDLegerPeers=n0-10.0.0.1:9888\n"


def test_the_address_of_a_controller_is_its_own_among_the_peers(tmp_path: Path) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text(PEERS + "listenPort=1\n")
    config = load_controller_config(conf)
    assert config.listen_port == 9888
    assert config.address_at(("0.0.0.0", 9888)) == "10.0.0.1:9888"
    assert load_controller_config(conf, {"listen_port": 7}).listen_port == 7
    config = ControllerConfig()
    assert config.address_at(("127.0.0.1", 9878)) == "127.0.0.1:9878"
    assert not config.address_at(("0.0.0.0", 9878)).startswith("0.0.0.0")


@pytest.mark.parametrize("peers", ["10.0.0.1:9888", "n0-10.0.0.1", "n0-", "-10.0.0.1:1"])
def test_peers_in_another_form_are_refused(peers: str) -> None:
    with pytest.raises(ConfigError):
        ControllerConfig(controller_d_leger_peers=peers).check()


def test_a_controller_in_a_name_server_reads_the_same_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(
        "listenPort=9886\nenableControllerInNamesrv=true\nenableElectUncleanMaster=true\n"
        f"scanNotActiveBrokerInterval=700\n{PEERS}"
    )
    with caplog.at_level(logging.WARNING):
        namesrv = load_namesrv_config(conf)
        controller = load_controller_in_namesrv(conf, {"health_port": 0})
    assert (namesrv.listen_port, controller.listen_port) == (9886, 9888)
    assert controller.enable_elect_unclean_master
    assert controller.scan_not_active_broker_interval == 700
    assert caplog.messages == []


def test_a_tls_server_that_enforces_also_connects_with_tls() -> None:
    assert ControllerConfig().client_tls is None
    assert ControllerConfig(use_tls=True).client_tls is not None
    enforcing = ControllerConfig(
        tls_server_mode=TlsMode.ENFORCING, tls_server_cert_path="server.pem"
    )
    assert enforcing.client_tls is not None
