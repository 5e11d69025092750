"""`turbopump exporter`: a page about a whole cluster, with an account, and not for strangers."""

import urllib.request
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from tests.unit.cli.commands import Running
from tests.unit.remoting.certificates import Pair

import turbopump.blocking
from turbopump import Credentials
from turbopump.cli import main
from turbopump.config.tls import TlsMode
from turbopump.testing.broker_in_loop import BrokerThread

ACCOUNTS = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username": "admin", "password": "s"}',
    "inner_client_authentication_credentials": '{"accessKey": "inner", "secretKey": "i"}',
}


def credentials_file(directory: Path, name: str, secret: str) -> str:
    file = directory / f"{name}.yml"
    file.write_text(f"accessKey: {name}\nsecretKey: {secret}\n")
    return str(file)


def test_a_user_with_get_on_everything_sees_the_cluster_over_tls(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    admin = credentials_file(tmp_path, "admin", "s")
    monitor = credentials_file(tmp_path, "monitor", "seen")
    (tmp_path / "password").write_text("seen\n")
    pair = Pair(tmp_path)
    tls = {
        "tls_server_mode": TlsMode.ENFORCING,
        "tls_server_cert_path": pair.certificate,
        "tls_server_key_path": pair.key,
        "tls_client_trust_cert_path": pair.certificate,
    }
    with BrokerThread(**ACCOUNTS, **tls) as servers:
        at = ["-n", servers.namesrv, "--tls-trust", pair.certificate]
        as_admin = [*at, "--credentials", admin]
        create = ["user", "create", "monitor", "--password-file", str(tmp_path / "password")]
        assert main(["auth", *create, *as_admin]) == 0
        for resource in ("Cluster:*", "Topic:*", "Group:*"):
            allow = ["policy", "add", "monitor", "--resource", resource, "--action", "Get"]
            assert main(["auth", *allow, *as_admin]) == 0
        user = Credentials("admin", "s")
        with turbopump.blocking.Producer(
            servers.namesrv, credentials=user, tls=pair.trusted()
        ) as producer:
            producer.send("orders", b"a book")
        exporter = start("exporter", *at, "--port", "0", "--credentials", monitor)
        address = exporter.wait_for(r"^ready exporter=(\S+)$")[1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        assert exporter.stop()[0] == 0
    assert 'broker_id="0"} 1\n' in page
    assert 'topic="orders"} 1\n' in page


def test_other_machines_reach_the_page_only_with_insecure(
    run: Callable[..., CompletedProcess[str]],
) -> None:
    refused = run("exporter", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "--host 0.0.0.0 can be reached from other machines" in refused.stderr


def test_without_a_name_server_the_page_says_so(start: Callable[..., Running]) -> None:
    exporter = start("exporter", "-n", "127.0.0.1:1", "--port", "0")
    address = exporter.wait_for(r"^ready exporter=(\S+)$")[1]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        assert 'turbopump_exporter_namesrv_up{namesrv="127.0.0.1:1"} 0' in answer.read().decode()
    code, log = exporter.stop()
    assert code == 0
    assert "no answer from a name server address=127.0.0.1:1" in log
