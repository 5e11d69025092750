"""The table of connected clients costs Python's collector little, however many groups it has."""

import gc

from turbopump.broker.client_table import ClientTable
from turbopump.broker.subscriptions import read_subscriptions
from turbopump.protocol.requests.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.protocol.requests.topics import TopicConfig

GROUPS = 1000


def filled() -> ClientTable[object]:
    table, peer = ClientTable[object](), object()
    for number in range(GROUPS):
        data = ConsumerData(
            group_name=f"group-{number}",
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=(SubscriptionData(topic=f"topic-{number}", sub_string="*"),),
        )
        reading = read_subscriptions(data)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                table.add_consumer(peer, "client", 400, data, end.value, 0.0)
                break
    return table


def test_a_group_with_a_member_is_one_object_to_the_collector() -> None:
    """50,000 groups were 600,000, and each of its looks kept the loop for 142 ms."""
    gc.collect()
    before = len(gc.get_objects())
    table = filled()
    gc.collect()
    assert len(table.groups) == GROUPS
    assert len(gc.get_objects()) - before <= 1.2 * GROUPS


def test_the_settings_of_groups_and_topics_are_none() -> None:
    assert not gc.is_tracked(SubscriptionGroupConfig(group_name="group"))
    assert not gc.is_tracked(TopicConfig(topic_name="topic"))
