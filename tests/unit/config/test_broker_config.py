"""broker.conf and namesrv.conf: keys to values, defaults, overrides, and one sentence for what
cannot be used."""

import logging
import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stand_ins import returns

from turbopump.config.addresses import join_address
from turbopump.config.broker_config import BrokerConfig, FlushDiskType, load_broker_config
from turbopump.config.namesrv_config import NamesrvConfig, load_namesrv_config
from turbopump.config.properties import decode_text, encode
from turbopump.config.setting import build, effective, settings_of
from turbopump.documentation import page_url
from turbopump.errors import ConfigError
from turbopump.remoting.client import split_address

APACHES_OWN_EXAMPLE = """\
# conf/broker.conf as Apache ships it
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""

PRINTED = Path(__file__).with_name("apache_5_3_3_broker.conf")
"""What ``BrokerStartup -p`` of 5.3.3 prints on a machine with two cores."""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return tmp_path / "broker.conf"


def load(conf: Path, text: str) -> BrokerConfig:
    conf.write_text(text)
    return load_broker_config(conf, environ={})


def test_apaches_own_example_is_taken(conf: Path) -> None:
    config = load(conf, APACHES_OWN_EXAMPLE)
    assert (config.broker_name, config.broker_cluster_name, config.broker_id) == (
        "broker-a",
        "DefaultCluster",
        0,
    )
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH


@pytest.mark.parametrize(
    ("text", "in_force", "acks", "warns"),
    [
        ("brokerRole=SYNC_MASTER", 2, 1, True),
        ("brokerRole=SYNC_MASTER\nflushDiskType=ASYNC_FLUSH\nbrokerId=0", 2, 1, True),
        ("brokerRole=SYNC_MASTER\ninSyncReplicas=1", 1, 0, False),
        ("brokerRole=SYNC_MASTER\ninSyncReplicas=2", 2, 1, False),
        ("brokerRole=SYNC_MASTER\ninSyncReplicas=3", 3, 2, False),
        ("brokerRole=ASYNC_MASTER", 1, 0, False),
        ("brokerRole=ASYNC_MASTER\ninSyncReplicas=2", 2, 0, False),
        ("", 1, 0, False),
        # what -p prints of a slave is kept in its file, and it may be made the master
        ("brokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=h:1", 2, 0, False),
        ("brokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=h:1\ninSyncReplicas=1", 1, 0, False),
    ],
)
def test_a_sync_master_without_in_sync_replicas_waits_for_one_slave(
    conf: Path, caplog: pytest.LogCaptureFixture, text: str, in_force: int, acks: int, warns: bool
) -> None:
    config = load(conf, text)
    assert (config.in_sync_replicas, config.slave_acks) == (in_force, acks)
    assert effective(config)["inSyncReplicas"] == str(in_force)
    said = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert ["waits for one slave, like Apache 4" in one for one in said] == [True] * warns
    again = load(conf, encode(effective(config)))  # -p prints what can be given with -c
    assert (again.in_sync_replicas, again.slave_acks) == (in_force, acks)


def test_in_sync_replicas_0_is_refused(conf: Path) -> None:
    with pytest.raises(ConfigError, match="inSyncReplicas=0: expected a whole number from 1 to 32"):
        load(conf, "inSyncReplicas=0")


def test_values_have_the_type_of_their_key(conf: Path) -> None:
    config = load(
        conf,
        "listenPort = 20911 "
        "\nautoCreateTopicEnable=FALSE\nflushDiskType=SYNC_FLUSH\nstorePathRootDir= "
        "/data/store\n",
    )
    assert config.listen_port == 20911
    assert config.auto_create_topic_enable is False
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.store_path_root_dir == "/data/store"
    assert config.commit_log_directories == ()


def test_the_commit_log_may_lie_elsewhere(conf: Path) -> None:
    assert load(conf, "storePathCommitLog=/fast/log").commit_log_directories == (Path("/fast/log"),)
    several = load(conf, "storePathCommitLog= /a/log , /b/log,\nreadOnlyCommitLogStorePaths=/c/log")
    assert several.commit_log_directories == (Path("/a/log"), Path("/b/log"))
    assert several.read_only_commit_log_directories == (Path("/c/log"),)


def test_a_directory_of_the_log_is_named_once(conf: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for key in ("storePathCommitLog", "readOnlyCommitLogStorePaths"):
        with pytest.raises(ConfigError, match=f"{key} names /a twice: name it once"):
            load(conf, f"{key}=/a,/b,/a")
        for other in ("link", "b/../a", "./a"):
            with pytest.raises(
                ConfigError,
                match=f"{key} names {tmp_path}/a and {tmp_path}/{other}, which are the same",
            ):
                load(conf, f"{key}={tmp_path}/a,{tmp_path}/{other}")


def test_numbers_that_are_held_within_bounds_are_shown_as_they_count(conf: Path) -> None:
    config = load(
        conf,
        "diskMaxUsedSpaceRatio=99\ndiskSpaceCleanForciblyRatio=1\nregisterNameServerPeriod=70000\n",
    )
    shown = effective(config)
    assert [
        shown[key]
        for key in (
            "diskMaxUsedSpaceRatio",
            "diskSpaceCleanForciblyRatio",
            "diskSpaceWarningLevelRatio",
        )
    ] == ["95", "30", "90"]
    assert config.register_name_server_period == 60_000


def test_the_hours_of_deletion_are_read_as_apache_reads_them(conf: Path) -> None:
    assert load(conf, "").delete_hours == {4}
    assert load(conf, "deleteWhen=4;05 ; 23").delete_hours == {4, 5, 23}
    for text in ("24", "four", "4,5", ";", "-1"):
        with pytest.raises(ConfigError, match=f"deleteWhen={text}: expected hours from 00 to 23"):
            load(conf, f"deleteWhen={text}")


def test_defaults_are_apaches_but_for_the_loopback_bind() -> None:
    config = load_broker_config(environ={})
    assert (config.bind_address, config.listen_port, config.namesrv_addr) == (
        "127.0.0.1",
        10911,
        "",
    )
    assert (config.mapped_file_size_commit_log, config.mapped_file_size_consume_queue) == (
        1 << 30,
        6_000_000,
    )
    assert (
        config.flush_interval_commit_log,
        config.sync_flush_timeout,
        config.max_message_size,
    ) == (500, 5000, 4 << 20)
    assert config.store_path_root_dir.endswith("/store")
    assert config.broker_name
    assert load_namesrv_config().listen_port == 9876


def test_an_override_wins_over_the_file(conf: Path) -> None:
    conf.write_text("listenPort=1234\nbrokerName=from-file\n")
    config = load_broker_config(conf, {"listen_port": 0}, environ={})
    assert (config.listen_port, config.broker_name) == (0, "from-file")


def test_name_servers_come_from_the_override_then_the_file_then_the_environment(conf: Path) -> None:
    conf.write_text("namesrvAddr=file:1;file:2\n")
    environ = {"NAMESRV_ADDR": "environment:3"}
    assert load_broker_config(None, environ=environ).namesrv_addresses == ["environment:3"]
    assert load_broker_config(conf, environ=environ).namesrv_addresses == ["file:1", "file:2"]
    assert load_broker_config(
        conf, {"namesrv_addr": "option:4"}, environ=environ
    ).namesrv_addresses == ["option:4"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("listenPort=ten", "listenPort=ten: expected a whole number"),
        ("listenPort=70000", "listenPort=70000: expected a whole number from 0 to 65535"),
        (
            "flushIntervalCommitLog=-5",
            r"flushIntervalCommitLog=-5: expected a whole number \(ms\) from 1 to",
        ),
        ("flushIntervalCommitLog=", r"flushIntervalCommitLog=: expected a whole number \(ms\)"),
        (
            "flushIntervalCommitLog=0.5",
            r"flushIntervalCommitLog=0.5: expected a whole number "
            r"\(ms\)",
        ),
        (
            "maxMessageSize=" + "9" * 5000,
            r"maxMessageSize=9{57}\.\.\.: expected a whole number "
            r"\(bytes\)",
        ),
        ("autoCreateTopicEnable=yes", "autoCreateTopicEnable=yes: expected true or false"),
        (
            "flushDiskType=SOMETIMES",
            "flushDiskType=SOMETIMES: expected one of ASYNC_FLUSH, SYNC_FLUSH",
        ),
        ("brokerRole=KING", "brokerRole=KING: expected one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE with brokerId=0: a slave's brokerId is 1 or more"),
        ("brokerRole=SLAVE\nbrokerId=1", "brokerRole=SLAVE needs namesrvAddr or haMasterAddress"),
        ("haMasterAddress=nowhere", "haMasterAddress 'nowhere' has no port"),
        (
            "aclEnable=true",
            "aclEnable=true: only false is served, authenticationEnabled, authorizationEnabled and "
            "migrateAuthFromV1Enabled do the same with plain_acl.yml; `turbopump auth import` "
            "turns it into users and policies",
        ),
        ("authorizationEnabled=true", "authorizationEnabled=true needs authenticationEnabled=true"),
        ("initAuthenticationUser=admin", "initAuthenticationUser is not .+ it may hold a secret.+"),
        (
            "authorizationWhitelist=10;11",
            "authorizationWhitelist=10;11: expected request codes separated by commas",
        ),
        (
            "tls.server.mode=strict",
            "tls.server.mode=strict: expected one of disabled, permissive, enforcing",
        ),
        ("tls.server.mode=enforcing", "TLS needs a certificate: tls.server.certPath and"),
        ("tls.config.file=/no/file", "the configuration file /no/file cannot be read"),
        ("storeType=defaultRocksDB", "storeType=defaultRocksDB: only default is served"),
        ("messageStorePlugIn=org.X", "messageStorePlugIn=org.X: only no value is served"),
        ("namesrvAddr=10.0.0.1", "namesrvAddr '10.0.0.1' has no port"),
        ("brokerName=", "brokerName is empty"),
        (
            "storePathRootDir=~/store",
            "storePathRootDir=~/store: only a shell reads ~ as the home directory",
        ),
        (
            "storePathRootDir=E:\\\\rocketmq\\\\store",
            r"storePathRootDir=E:\\rocketmq\\store: this is a path of Windows",
        ),
        ("storePathCommitLog=/a,d:/b", "storePathCommitLog=/a,d:/b: this is a path of Windows"),
        ("storePathCommitLog=/a, ~/b", "storePathCommitLog=/a, ~/b: only a shell reads ~"),
        ("storePathRootDir=", "storePathRootDir is empty: expected the name of a directory"),
        ("brokerName=\\u12", r"the configuration file \S+broker.conf: malformed escape"),
        (
            "mappedFileSizeCommitLog=4194304",
            "a message of maxMessageSize=4194304 bytes would not fit in one file",
        ),
    ],
)
def test_a_value_that_cannot_be_used_stops_the_start_with_one_sentence(
    conf: Path, line: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}|{sentence}$") as refused:
        load(conf, line)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"missing\.conf cannot be read: No such file or directory"
    ):
        load_broker_config(tmp_path / "missing.conf")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_namesrv_config(tmp_path)


def test_keys_without_effect_and_unknown_keys_are_reported_and_their_values_are_not(
    conf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "turbopump.config"):
        load(
            conf,
            "flushDiskTyp=SYNC_FLUSH\nsendMessageThreadPoolNums=44\nmyOwn.thing=secret\n"
            "listenPort=1\nadminBrokerThreadPoolNums=17\nslaveReadEnable=false\n",
        )
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [
        ("WARNING", f"unknown key file={conf} key=flushDiskTyp nearest=flushDiskType"),
        ("WARNING", f"unknown key file={conf} key=myOwn.thing nearest=-"),
        (
            "WARNING",
            "keys without effect here have other values than Apache's defaults; "
            f"see {page_url('docs/reference/configuration.md')} "
            f"file={conf} keys=sendMessageThreadPoolNums,adminBrokerThreadPoolNums",
        ),
    ]


@pytest.mark.parametrize(
    ("mode", "line", "warned"),
    [
        (0o644, "tls.server.keyPassword=pw", "tls.server.keyPassword"),
        (0o602, 'initAuthenticationUser={"username":"a","password":"p"}', "initAuthenticationUser"),
        (0o640, "tls.server.keyPassword=pw", None),
        (0o600, "tls.server.keyPassword=pw", None),
        (0o644, "tls.server.keyPassword=", None),
        (0o644, "brokerName=b", None),
    ],
)
def test_a_file_of_passwords_that_every_user_of_the_machine_can_get_at_is_warned_of(
    conf: Path, caplog: pytest.LogCaptureFixture, mode: int, line: str, warned: str | None
) -> None:
    conf.touch()
    conf.chmod(mode)
    with caplog.at_level(logging.INFO, "turbopump.config"):
        load(conf, line + "\n")
    told = [record.getMessage() for record in caplog.records]
    assert told == (
        [
            "every user of this machine can get at the secrets in the configuration file, run "
            f"chmod o-rwx file={conf} mode={mode:04o} keys={warned}"
        ]
        if warned
        else []
    )


def test_what_apaches_broker_prints_of_its_configuration_starts_ours_without_a_word(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", returns(2))  # as where it was printed
    with caplog.at_level(logging.INFO, "turbopump.config"):
        config = load_broker_config(PRINTED)
    assert caplog.messages == []
    assert (config.listen_port, config.ha_listen_port) == (10911, 10912)
    assert config.store_path_root_dir == "/root/store"


@pytest.mark.parametrize(
    "line",
    [
        "aclEnable=true",
        "enableDLegerCommitLog=true",
        "storeType=defaultRocksDB",
        "messageStorePlugIn=org.example.Store",
        "flushDiskType=SOMETIMES",
    ],
)
def test_in_it_a_key_of_safety_that_cannot_be_honoured_is_refused(conf: Path, line: str) -> None:
    key = line.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{line}: "):
        load(conf, re.sub(f"(?m)^{key}=.*$", "", PRINTED.read_text()) + line)


def test_the_effective_configuration_is_a_file_that_loads_to_the_same(conf: Path) -> None:
    config = load(
        conf,
        APACHES_OWN_EXAMPLE + "brokerIP1=10.0.0.5\nbindAddress=0.0.0.0\nflushDiskType=SYNC_FLUSH\n",
    )
    text = encode(effective(config))
    assert "brokerIP1=10.0.0.5\n" in text
    assert "autoCreateTopicEnable=true\n" in text
    assert build(BrokerConfig, decode_text(text), {}) == config
    assert (
        build(NamesrvConfig, decode_text(encode(effective(NamesrvConfig()))), {}) == NamesrvConfig()
    )


def test_clients_are_told_the_set_host_or_the_one_that_is_bound() -> None:
    assert BrokerConfig().advertised_host == "127.0.0.1"
    assert BrokerConfig(bind_address="10.1.2.3").advertised_host == "10.1.2.3"
    assert (
        BrokerConfig(bind_address="10.1.2.3", broker_ip1="shop.example").advertised_host
        == "shop.example"
    )
    assert BrokerConfig(bind_address="0.0.0.0").advertised_host not in ("", "0.0.0.0")


@pytest.mark.parametrize(
    ("lines", "bound"),
    [
        ("", "127.0.0.1"),
        ("brokerIP1=127.0.0.2\n", "127.0.0.1"),
        ("brokerIP1=localhost\n", "127.0.0.1"),
        ("brokerIP1=192.0.2.7\nbindAddress=127.0.0.1\n", "127.0.0.1"),
        ("brokerIP1=shop.example\nbindAddress=0.0.0.0\n", "0.0.0.0"),
    ],
)
def test_a_broker_listens_where_bind_address_says_else_on_loopback(
    conf: Path, lines: str, bound: str
) -> None:
    assert load(conf, lines).bind_address == bound


def test_an_ipv6_address_may_stand_in_brackets_as_apaches_brokers_need_it(conf: Path) -> None:
    config = load(conf, "brokerIP1=[::1]\nbrokerIP2=[::1]\nbindAddress=::1\n")
    assert config.advertised_host == "::1"


def test_a_local_address_that_clients_are_told_is_listened_on(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turbopump.config.broker_config.is_of_this_machine", "10.0.0.5".__eq__)
    config = load(conf, "brokerIP1=10.0.0.5\n")
    assert (config.bind_address, config.advertised_host) == ("10.0.0.5", "10.0.0.5")


@pytest.mark.parametrize("advertised", ["192.0.2.7", "2001:db8::7", "shop.example"])
def test_an_address_of_another_machine_says_not_where_to_listen(
    conf: Path, advertised: str
) -> None:
    with pytest.raises(ConfigError, match=r"is not an address of this machine.*bindAddress=0\.0"):
        load(conf, f"brokerIP1={advertised}\n")


@pytest.mark.parametrize(
    "host", ["mq..example", "a" * 64, "127.0.0.1:10911", "[::1]:10911", "http://10.0.0.5", "a b"]
)
@pytest.mark.parametrize("key", ["brokerIP1", "brokerIP2", "bindAddress"])
def test_what_is_no_host_is_refused_by_name(conf: Path, key: str, host: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}.*is not a host"):
        load(conf, f"{key}={host}\n")


@pytest.mark.parametrize("key", ["namesrvAddr", "haMasterAddress"])
def test_an_address_whose_host_can_be_looked_up_nowhere_is_refused(conf: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: 'mq..example' is not a host name"):
        load(conf, f"{key}=10.0.0.5:9876;mq..example:9876\n")


@given(st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=70))
def test_a_host_that_clients_are_told_is_one_that_they_can_look_up(host: str) -> None:
    with suppress(ConfigError):
        load_broker_config(None, {"broker_ip1": host, "bind_address": "127.0.0.1"}, environ={})
        assert split_address(join_address(host, 10911)) == (host, 10911)


@pytest.mark.parametrize(
    "line", ["enableNetWorkFlowControl=true", "enableLmq=true", "enableMultiDispatch=true"]
)
def test_a_feature_that_is_not_there_is_warned_of(
    conf: Path, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    load(conf, line + "\n")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith(f"keys={line.partition('=')[0]}")


def test_every_field_has_a_setting_and_a_default_within_its_own_bounds() -> None:
    for config in (BrokerConfig, NamesrvConfig):
        settings = dict(settings_of(config))
        assert sorted(field.name for field in fields(config)) == sorted(settings)
        assert build(config, effective(config()), {}) == config()
        assert len({known.key for known in settings.values()}) == len(settings)


CONTROLLED = "enableControllerMode=true\ncontrollerAddr=10.0.0.1:9878;10.0.0.2:9878\n"


def test_with_a_controller_role_and_id_of_the_file_have_no_effect(
    conf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "turbopump.config"):
        config = load(conf, CONTROLLED + "brokerRole=SLAVE\nbrokerId=-1\n")
    assert config.controller_addresses == ["10.0.0.1:9878", "10.0.0.2:9878"]
    assert not config.is_slave
    said = "key has no effect, because the controller decides key={} value={}"
    assert caplog.messages == [said.format("brokerRole", "SLAVE"), said.format("brokerId", "-1")]


def test_our_defaults_with_a_controller_are_the_safe_ones(conf: Path) -> None:
    config = load(conf, CONTROLLED)
    assert (config.all_ack_in_sync_state_set, config.min_in_sync_replicas) == (True, 2)
    assert config.ha_max_time_slave_not_catchup == 3000
    assert load(conf, "").ha_max_time_slave_not_catchup == 15_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("enableControllerMode=true\n", "needs controllerAddr"),
        ("controllerAddr=here\n", "controllerAddr"),
        (CONTROLLED + "haMasterAddress=h:1\n", "the controller names the master"),
        (CONTROLLED + "brokerHeartbeatInterval=2000\n", "at least twice brokerHeartbeatInterval"),
        (CONTROLLED + "readOnlyCommitLogStorePaths=/old\n", "cut the end of its log"),
        (CONTROLLED + "fetchControllerAddrByDnsLookup=true\n", "list the controllers"),
    ],
)
def test_settings_that_do_not_fit_a_controller_are_refused(
    conf: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(conf, text)
