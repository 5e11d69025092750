"""Which names are legal, what Java's hash is, and what a message says of itself."""

import pytest

from turbopump.errors import MessageError
from turbopump.message.java import java_hash, tags_code
from turbopump.message.message import Message, MessageQueue
from turbopump.message.rules import group_fault, is_system_topic, topic_fault


@pytest.mark.parametrize(
    "topic",
    [
        "T",
        "a-b_C9",
        "%RETRY%group",
        "%DLQ%group",
        "a|b",
        "t" * 127,
        "%RETRY%" + "g" * 248,
        "%RETRY%g+T",
    ],
)
def test_legal_topics_have_no_fault(topic: str) -> None:
    assert topic_fault(topic) is None


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("\n", "empty"),
        ("a b", "holds a character"),
        ("a.b", "holds a character"),
        ("../../x", "holds a character"),
        ("a/b", "holds a character"),
        ("t\n", "holds a character"),
        ("tópico", "holds a character"),
        ("t\0", "holds a character"),
        ("a+b", "holds a character"),
        ("%DLQ%a+b", "holds a character"),
        ("%RETRY%+b", "holds a character"),
        ("%RETRY%a+", "holds a character"),
        ("%RETRY%a+b+c", "holds a character"),
        ("t" * 128, "at most 127"),
        ("%RETRY%" + "g" * 249, "at most 255"),
    ],
)
def test_an_illegal_topic_is_told_what_is_wrong_with_it(topic: str, fault: str) -> None:
    assert fault in (topic_fault(topic) or "")


def test_groups_may_have_120_characters() -> None:
    assert group_fault("g" * 120) is None
    assert "at most 120" in (group_fault("g" * 121) or "")
    assert "holds a character" in (group_fault("../g") or "")


def test_system_topics_are_known_by_name_or_prefix() -> None:
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("orders")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("hello world", 1794106052),
        ("polygenelubricants", -(2**31)),
        ("é", 233),
        ("😀", 1772899),
    ],
)
def test_tag_codes_are_java_s_string_hashes(text: str, code: int) -> None:
    assert java_hash(text) == code
    assert tags_code(text) == code


def test_a_message_keeps_tags_and_keys_among_its_properties() -> None:
    message = Message(
        "T", "ü", tags="t", keys=["a", "b"], properties={"own": "1"}, wait_store_ok=False
    )
    assert (message.body, message.tags, message.keys) == ("ü".encode(), "t", ["a", "b"])
    assert message.properties == {"own": "1", "TAGS": "t", "KEYS": "a b", "WAIT": "false"}
    assert not message.wait_store_ok
    assert Message("T", b"").wait_store_ok
    assert repr(message) == "Message(topic='T', body=2 B, tags='t', keys=['a', 'b'])"


def test_queues_sort_by_topic_broker_and_number() -> None:
    queues = [
        MessageQueue("T", "b", 10),
        MessageQueue("T", "b", 9),
        MessageQueue("T", "a", 11),
        MessageQueue("S", "z", 0),
    ]
    assert [str(queue) for queue in sorted(queues)] == ["S@z:0", "T@a:11", "T@b:9", "T@b:10"]


def test_a_delay_level_is_a_property_and_nonsense_is_refused() -> None:
    assert Message("T", b"x", delay_level=3).properties == {"DELAY": "3"}
    assert Message("T", b"x", delay_level=0).properties == {}
    for wrong in (-1, 1000, "3", True, 1.5):
        with pytest.raises(MessageError, match="delay_level"):
            Message("T", b"x", delay_level=wrong)  # type: ignore[arg-type]
