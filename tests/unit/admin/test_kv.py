"""Key-value configuration of name servers, and globally ordered topics."""

from __future__ import annotations

import pytest
from tests.loops import in_loop
from tests.unit.admin.two_name_servers import two_name_servers

from turbopump.admin.admin import Admin
from turbopump.admin.kv import ORDERED_TOPICS, ordered_queues_of
from turbopump.errors import ClientError, ConfigError


@in_loop
async def test_a_value_is_set_and_deleted_on_every_name_server() -> None:
    async with two_name_servers() as (addresses, _), Admin(addresses) as admin:
        await admin.kv.put("NS", "k", "v")
        for address in addresses:
            async with Admin(address) as one:
                assert await one.kv.get("NS", "k") == "v"
                assert await one.kv.list("NS") == {"k": "v"}
        await admin.kv.delete("NS", "k")
        await admin.kv.delete("NS", "k")
        for address in addresses:
            async with Admin(address) as one:
                assert await one.kv.get("NS", "k") is None


@in_loop
async def test_an_unknown_namespace_is_empty() -> None:
    async with two_name_servers() as (addresses, _), Admin(addresses) as admin:
        assert await admin.kv.list("NS") == {}


@in_loop
async def test_an_ordered_topic_has_its_queues_by_broker() -> None:
    async with two_name_servers() as (addresses, _), Admin(addresses) as admin:
        await admin.kv.set_ordered_queues("orders", {"a": 4})
        added = await admin.kv.set_ordered_queues("orders", {"b": 2}, keep_others=True)
        assert added == {"a": 4, "b": 2}
        assert await admin.kv.get(ORDERED_TOPICS, "orders") == "a:4;b:2"
        assert await admin.kv.ordered_topics() == {"orders": added}
        await admin.kv.set_ordered_queues("orders", {"b": 8})
        assert await admin.kv.ordered_queues("orders") == {"b": 8}
        await admin.kv.delete_ordered_queues("orders")
        assert await admin.kv.ordered_queues("orders") == {}


@pytest.mark.parametrize("queues", [{}, {"a": 0}, {"": 1}, {"a:1": 1}, {"a;b": 1}])
@in_loop
async def test_impossible_queues_are_refused_before_a_request(queues: dict[str, int]) -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(ConfigError):
            await admin.kv.set_ordered_queues("orders", queues)


def test_a_value_of_another_form_is_an_error() -> None:
    with pytest.raises(ClientError, match="orders are not readable: 'a=4'"):
        ordered_queues_of("a=4", "orders")
