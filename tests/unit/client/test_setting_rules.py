"""Settings that cannot work are refused where the object is made, and the refusal says what to give
instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from turbopump import blocking
from turbopump.client.hooks import SendHook
from turbopump.client.lite_pull_consumer import LitePullConsumer
from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.selectors import HashRing
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.queue_chooser import LatencyFaults
from turbopump.client.sending.settings import DEFAULT_GROUP
from turbopump.client.simple_consumer import SimpleConsumer
from turbopump.clock import SystemClock
from turbopump.errors import ConfigError

UNUSABLE = [
    ({"auto_batch": True}, r"auto_batch=True must be made as AutoBatch, as in AutoBatch\(\)"),
    (
        {"back_pressure": 1},
        r"back_pressure=1 must be made as BackPressure, as in "
        r"BackPressure\(messages=1000\)",
    ),
    (
        {"latency_faults": True},
        r"latency_faults=True must be made as LatencyFaults, as in "
        r"LatencyFaults\(\)",
    ),
    (
        {"compression_level": 2.5},
        "compression_level=2.5 must be a whole number from 0 to 9 for zlib",
    ),
    ({"compression_level": "5"}, "compression_level='5' must be a whole number"),
    ({"compression_level": True}, "compression_level=True must be a whole number"),
    (
        {"retry_codes": "12"},
        r"retry_codes='12' must be a collection of response codes, as in "
        r"\(2, 14\)",
    ),
    ({"retry_codes": 5}, "retry_codes=5 must be a collection"),
    ({"retry_codes": ("2",)}, "must be a collection of response codes"),
    ({"trace": "bad topic!"}, "trace='bad topic!' must be True .* or the name of a topic"),
    ({"trace": "SCHEDULE_TOPIC_XXXX"}, "a topic that may be sent to"),
    ({"trace": ""}, "trace='' must be"),
    ({"trace": 1}, "trace=1 must be True"),
    ({"local_ip": "nonsense"}, "local_ip='nonsense' must be an IP address, as in '10.0.0.7'"),
    ({"local_ip": ""}, "local_ip='' must be an IP address"),
    ({"hooks": [print]}, "inherits SendHook"),
    ({"hooks": [SendHook]}, "inherits SendHook"),
    ({"hooks": None}, "hooks=None must be a list of SendHook objects"),
    ({"namespace_v2": ""}, "namespace_v2='' must be text that is not empty, in valid Unicode"),
    ({"namespace": ""}, "namespace='' must be text that is not empty, in valid Unicode; omit it"),
    ({"namespace": 5}, "namespace=5 must be text"),
    ({"instance_name": 5}, "instance_name=5 must be text"),
    ({"retries": True}, "retries=True must be a whole number"),
    ({"send_timeout": float("inf")}, "send_timeout=inf must be a number of seconds above 0"),
    ({"send_timeout": float("nan")}, "send_timeout=nan must be a number of seconds above 0"),
    (
        {"attempt_timeout": float("inf")},
        "attempt_timeout=inf must be a number of seconds above 0, or None",
    ),
    (
        {"clock": 5},
        r"clock=5 must be a clock: an object with now_ms\(\) and monotonic\(\), "
        r"or None",
    ),
    ({"clock": SystemClock}, "must be a clock: an object with"),
    ({"random": 7}, r"random=7 must be a random.Random, as in random.Random\(7\), or None"),
    ({"instance_name": "\ud800"}, r"instance_name='\\ud800' must be text .* in valid Unicode"),
    ({"retry_unless_ok": "no"}, "retry_unless_ok='no' must be True or False"),
    ({"namesrv": 9876}, "namesrv=9876 must be HOST:PORT of a name server"),
    ({"group": 5}, "group=5 must be the name of a group"),
    ({"compress_from": True}, "compress_from=True must be a number of bytes"),
    (
        {"credentials": ("key", "secret")},
        r"credentials must be made as Credentials\(access_key, "
        r"secret_key\)$",
    ),
]


@pytest.mark.parametrize(("settings", "told"), UNUSABLE)
@pytest.mark.parametrize("make", [Producer, blocking.Producer])
def test_a_producer_says_of_a_setting_that_cannot_work_what_it_must_be(
    make: Callable[..., object], settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make(**{"namesrv": "127.0.0.1:9876", **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {
            "auto_batch": AutoBatch(),
            "back_pressure": BackPressure(1, 1),
            "latency_faults": LatencyFaults(),
        },
        {
            "retry_codes": [2, 14],
            "trace": "traces",
            "local_ip": "::1",
            "hooks": [SendHook()],
            "compression_level": 9,
        },
        {
            "retry_codes": frozenset(),
            "trace": True,
            "local_ip": "10.0.0.7",
            "hooks": (),
            "namespace": "a",
            "namespace_v2": "b",
        },
    ],
)
def test_what_can_work_is_taken(settings: dict[str, Any]) -> None:
    assert Producer("127.0.0.1:9876", **settings).group == DEFAULT_GROUP


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"local_ip": "nonsense"}, "must be an IP address"),
        ({"namespace_v2": ""}, "not empty"),
        ({"namespace": ""}, "not empty"),
    ],
)
@pytest.mark.parametrize("make", [PullConsumer, PushConsumer, SimpleConsumer, LitePullConsumer])
def test_what_all_clients_have_is_checked_for_all(
    make: Callable[..., object], settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make("127.0.0.1:9876", group="readers", **settings)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (partial(BackPressure, 1.5), "messages=1.5 must be a whole number above 0"),  # type: ignore[arg-type]
        (partial(BackPressure, "3"), "messages='3' must be a whole number above 0"),  # type: ignore[arg-type]
        (partial(BackPressure, 0), "messages=0 must be a whole number above 0"),
        (partial(BackPressure, size=0), "size=0 must be a whole number above 0"),
        (
            partial(LatencyFaults, (50,), (-5,)),
            r"not_available_ms=\(-5,\) must be whole numbers "
            r"of ms, 0 or more",
        ),
        (partial(LatencyFaults, ("50",), (5,)), "latency_max_ms=.* must be whole numbers"),  # type: ignore[arg-type]
        (partial(LatencyFaults, latency_max_ms=5), "latency_max_ms=5 must be whole numbers"),  # type: ignore[arg-type]
        (
            partial(LatencyFaults, detect_interval=float("nan")),
            "detect_interval=nan must be a number of seconds above 0",
        ),
        (partial(LatencyFaults, detect_interval=float("inf")), "detect_interval=inf must be"),
        (
            partial(LatencyFaults, detect_timeout=0),
            "detect_timeout=0 must be a number of seconds above 0",
        ),
        (partial(LatencyFaults, detector=1), "detector=1 must be True or False"),  # type: ignore[arg-type]
        (
            partial(AutoBatch, hold="1"),
            "hold='1' must be a number of seconds above 0 and at most 30",
        ),  # type: ignore[arg-type]
        (partial(AutoBatch, hold=31), "hold=31 must be"),
        (
            partial(AutoBatch, size=True),
            "size=True must be a number of bytes above 0 and at most 2097152",
        ),
        (partial(AutoBatch, size=2.5), "size=2.5 must be"),  # type: ignore[arg-type]
        (
            partial(AutoBatch, total_size=float("inf")),
            "total_size=inf must be a number of bytes above 0",
        ),  # type: ignore[arg-type]
        (
            partial(HashRing, 0),
            "virtual_nodes=0 must be a whole number of points of each queue, 1 or more",
        ),
        (partial(HashRing, 1.5), "virtual_nodes=1.5 must be"),  # type: ignore[arg-type]
    ],
)
def test_what_a_setting_is_made_of_is_checked_where_it_is_made(
    make: Callable[[], object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make()
