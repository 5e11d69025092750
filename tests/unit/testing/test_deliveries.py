"""Messages for unit tests of handlers, and what such tests compare."""

import copy
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump import ConfigError, Message, Retry
from turbopump.testing import delivery_of


def test_a_delivery_has_what_its_message_has_and_is_settled_by_the_first_word() -> None:
    message = Message(
        "orders", b"one coffee", tags="new", keys=["42", "k"], properties={"shop": "eu"}, flag=3
    )
    delivery = delivery_of(message, attempt=3, queue_offset=7, born_timestamp=1_700_000_000_000)
    assert (delivery.topic, delivery.body, delivery.flag) == ("orders", b"one coffee", 3)
    assert (delivery.tags, delivery.keys) == ("new", ["42", "k"])
    assert delivery.user_properties == {"shop": "eu"}
    assert (delivery.attempt, delivery.reconsume_times, delivery.queue_offset) == (3, 2, 7)
    assert delivery.msg_id == delivery.offset_msg_id
    assert not delivery.settled
    assert delivery.wanted
    delivery.retry(level=-1, reason="no stock")
    delivery.done()
    assert (delivery.settled, delivery.again, delivery.failure) == (True, True, "no stock")


_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "tags": st.sampled_from(["a", "b"]),
        "keys": st.lists(st.sampled_from("kl"), min_size=1),
        "properties": st.dictionaries(st.sampled_from("pq"), st.sampled_from("vw"), min_size=1),
        "flag": st.integers(0, 2),
        "wait_store_ok": st.booleans(),
    },
)


@given(st.sampled_from("ST"), st.sampled_from([b"x", b"y"]), _PARTS, _PARTS)
def test_messages_are_equal_by_value(topic: str, body: bytes, one: dict, other: dict) -> None:  # type: ignore[type-arg]
    message = Message(topic, body, **one)
    assert message == Message(topic, body, **one) == pickle.loads(pickle.dumps(message))
    same = {"wait_store_ok": True, "flag": 0} | one == {"wait_store_ok": True, "flag": 0} | other
    assert (message == Message(topic, body, **other)) == same
    assert message != Message("U", body, **one)
    assert message != Message(topic, b"z", **one)
    assert message != body
    with pytest.raises(TypeError):
        hash(message)


def test_retries_are_equal_by_value_and_say_what_they_are() -> None:
    assert Retry(level=5) == Retry(level=5) != Retry(level=4)
    assert Retry(timedelta(seconds=30)) == Retry(30) == Retry(delay=30.0)
    assert Retry(reason="no stock") != Retry()
    assert len({Retry(delay=1), Retry(delay=1), Retry(delay=2)}) == 2
    assert repr(Retry(delay=3)) == "Retry(delay=3, level=0, reason=None)"
    assert copy.copy(Retry(level=5)) == pickle.loads(pickle.dumps(Retry(level=5))) == Retry(level=5)
    with pytest.raises(ConfigError):
        Retry("soon")  # type: ignore[arg-type]
