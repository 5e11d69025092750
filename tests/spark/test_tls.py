"""TLS: rows are written, found there again, and read, by servers that take nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.remoting.certificates import Pair

from turbopump.config.tls import ClientTls, TlsMode
from turbopump.errors import ConfigError, RemotingError
from turbopump.spark.batch import BatchReader
from turbopump.spark.cluster import Cluster
from turbopump.spark.options import read_options
from turbopump.spark.read_back import Planned, attempt_of
from turbopump.spark.sink import write_task
from turbopump.spark.write_options import layout, write_options
from turbopump.testing import BrokerThread

NEEDED = {"nameServer": "127.0.0.1:9876", "topic": "T"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def servers(pair: Pair) -> Iterator[BrokerThread]:
    with BrokerThread(
        tls_server_mode=TlsMode.ENFORCING,
        tls_server_cert_path=pair.certificate,
        tls_server_key_path=pair.key,
        tls_client_trust_cert_path=pair.certificate,
    ) as running:
        yield running


def test_a_write_and_a_read_over_tls(servers: BrokerThread, pair: Pair) -> None:
    given = {"nameServer": servers.namesrv, "topic": "T", "tlsTrust": pair.certificate}
    batch = pa.record_batch({"body": [b"a", b"b"], "keys": ["1", "2"]})
    plan = pickle.loads(pickle.dumps(write_options({**given, "idempotencyKey": "keys"})))
    attempt = attempt_of(None, plan, Planned("w", 0), 0)
    assert write_task(iter([batch]), plan, layout(batch.schema, plan), attempt).rows == 2
    reader = pickle.loads(pickle.dumps(BatchReader(read_options(given))))
    bodies = {
        body
        for task in reader.partitions()
        for rows in reader.read(task)
        for body in rows.column("body").to_pylist()
    }
    assert bodies == {b"a", b"b"}


def test_a_server_that_is_not_trusted_is_refused(servers: BrokerThread) -> None:
    with (
        Cluster([servers.namesrv], patience=0, tls=ClientTls()) as cluster,
        pytest.raises(RemotingError, match="its certificate is not trusted"),
    ):
        cluster.queues("T")


def test_what_is_said_of_tls_comes_from_options_else_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.authServer=false\ntls.client.keyPassword=s3same\n")
    told = {"TURBOPUMP_TLS_TRUST": "ca.pem"}
    for options, environment, tls in (
        ({}, {}, None),
        ({"tls": "true"}, {}, ClientTls()),
        ({"tlsTrust": "other.pem"}, told, ClientTls(trust="other.pem")),
        ({}, told, ClientTls(trust="ca.pem")),
        ({"tls": "false"}, told, None),
        ({"tlsConfigFile": str(file)}, {}, ClientTls(verify=False, key_password="s3same")),
    ):
        for read in (read_options, write_options):
            found = read({**NEEDED, **options}, environment)
            assert found.tls == tls
            assert "s3same" not in repr(found)
    with pytest.raises(ConfigError, match="tls"):
        read_options({**NEEDED, "tls": "perhaps"}, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_options({**NEEDED, "tlsConfigFile": "/no/file"}, {})
