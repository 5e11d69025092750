"""Settings of a running broker: read (26) and changed (25), in force at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse, talking, watched

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.config.properties import decode_text
from turbopump.config.setting import hot_keys
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.configuration import (
    GetBrokerConfig,
    GetBrokerConfigReply,
    UpdateBrokerConfig,
)
from turbopump.protocol.requests.pull import PullMessage
from turbopump.protocol.requests.send import SendMessageV2


async def send_code(talk: Talk, topic: str = "T", size: int = 1) -> int:
    answer = await talk.client.ask(SendMessageV2(topic=topic, queue_id=0), b"x" * size)
    return answer.code


async def big_send(talk: Talk) -> int:
    return await send_code(talk, size=5000)


async def send_to_new_topic(talk: Talk) -> int:
    return await send_code(talk, "new")


async def pull_of_new_group(talk: Talk) -> int:
    request = PullMessage(
        consumer_group="newcomers", topic="T", queue_id=0, queue_offset=0, max_msg_nums=1,
        sys_flag=0, commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*",
    )  # fmt: skip
    return (await talk.client.ask(request)).code


IN_FORCE: dict[str, tuple[str, Callable[[Talk], Awaitable[int]], int]] = {
    "brokerPermission": ("4", send_code, ResponseCode.SUCCESS),
    "maxMessageSize": ("4096", big_send, ResponseCode.MESSAGE_ILLEGAL),
    "autoCreateTopicEnable": ("false", send_to_new_topic, ResponseCode.TOPIC_NOT_EXIST),
    "autoCreateSubscriptionGroup": (
        "false",
        pull_of_new_group,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ),
    "startAcceptSendRequestTimeStamp": ("99999999999999", send_code, ResponseCode.SYSTEM_ERROR),
}


@pytest.mark.parametrize("key", IN_FORCE)
@in_loop(converse, max_message_size=65_536)
async def test_a_change_is_in_force_when_it_is_answered(talk: Talk, /, key: str) -> None:
    value, ask, code = IN_FORCE[key]
    await talk.client.create()
    changed = await talk.client.ask(UpdateBrokerConfig(), f"{key}={value}\n".encode())
    assert changed.code == ResponseCode.SUCCESS
    assert "started without a file" in (changed.remark or "")
    assert await ask(talk) == code
    assert decode_text((await talk.client.ask(GetBrokerConfig())).body.decode())[key] == value


@in_loop(watched)
async def test_a_change_is_saved_in_the_file_that_the_broker_was_started_with(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# ours\nbrokerName=broker-a\ntraceOn = true\n")
    make = partial(Broker, file=file)
    async with talking(tmp_path / "store", make=make, max_message_size=65_536) as talk:
        text = b"traceOn=false\nfileReservedTime=5\n"
        assert await talk.client.code(UpdateBrokerConfig(), text) == (ResponseCode.SUCCESS, "")
        assert file.read_text() == (
            "# ours\nbrokerName=broker-a\ntraceOn=false\nfileReservedTime=5\n"
        )


@in_loop(converse, max_message_size=65_536)
async def test_what_the_store_does_changes_too(talk: Talk, /) -> None:
    text = b"fileReservedTime=5\ndeleteWhen=01;02\ndiskSpaceWarningLevelRatio=80\n"
    assert (await talk.client.ask(UpdateBrokerConfig(), text)).code == ResponseCode.SUCCESS
    rules, limits = talk.broker.store.retention.rules, talk.broker.store.space.limits
    assert (rules.reserved_ms, set(rules.hours)) == (5 * 3_600_000, {1, 2})
    assert limits.warning == 80


@in_loop(converse, max_message_size=65_536)
async def test_every_setting_is_shown_as_apache_prints_them(talk: Talk, /) -> None:
    answer = await talk.client.ask(GetBrokerConfig())
    shown = answer.body.decode().splitlines()
    texts = decode_text(answer.body.decode())
    assert shown == sorted(shown, key=lambda line: line.partition("=")[0])
    assert texts["brokerName"] == "broker-a"
    assert texts["adminBrokerThreadPoolNums"] == "16"  # no effect here
    assert answer.header(GetBrokerConfigReply).version == (
        '{"counter":0,"stateVersion":0,"timestamp":0}'
    )
    await talk.client.ask(UpdateBrokerConfig(), b"traceOn=false\n")
    answer = await talk.client.ask(GetBrokerConfig())
    assert '"counter":1' in (answer.header(GetBrokerConfigReply).version or "")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("rocketmqHome=/tmp/x;id", ResponseCode.NO_PERMISSION, "has no effect here"),
        ("storePathRootDir=/etc", ResponseCode.NO_PERMISSION, "cannot be changed while"),
        ("flushDiskType=ASYNC_FLUSH", ResponseCode.NO_PERMISSION, "cannot be changed while"),
        ("maxMessageSize=1048576", ResponseCode.SYSTEM_ERROR, "would not fit in one file"),
        ("maxMessageSize=-1", ResponseCode.SYSTEM_ERROR, "from 1 to"),
        ("traceOm=false", ResponseCode.SYSTEM_ERROR, "the nearest is traceOn"),
    ],
)
@in_loop(converse, max_message_size=65_536)
async def test_what_cannot_be_changed_is_refused_with_all_of_its_request(
    talk: Talk, /, text: str, code: int, words: str
) -> None:
    before = (await talk.client.ask(GetBrokerConfig())).body
    answered = await talk.client.code(UpdateBrokerConfig(), f"traceOn=false\n{text}\n".encode())
    assert answered[0] == code
    assert words in answered[1]
    assert (await talk.client.ask(GetBrokerConfig())).body == before


@pytest.mark.parametrize("config", [BrokerConfig, NamesrvConfig])
def test_nothing_that_guards_the_machine_can_be_changed(config: type[Any]) -> None:
    """Paths, addresses, ports, durability and access: CVE-2023-33246, CVE-2023-37582."""
    for key in hot_keys(config):
        assert not any(
            word in key.lower()
            for word in (
                "path",
                "addr",
                "ip1",
                "ip2",
                "port",
                "flush",
                "role",
                "auth",
                "acl",
                "tls",
                "bind",
                "credential",
                "insecure",
                "peers",
                "connection",
            )
        ), key
