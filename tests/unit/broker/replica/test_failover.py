"""A controller elects another master when the master dies, and nothing acknowledged is lost."""

from tests.loops import in_loop
from tests.unit.broker.replica.groups import Group, eventually_routed, with_group


@in_loop(with_group)
async def test_after_the_death_of_the_master_both_messages_are_read(group: Group, /) -> None:
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("T")
    await talk.send(b"before")
    group.kill(first.host)

    second = await group.master_other_than(first.host)
    talk = group.client(second)
    await talk.send(b"after")
    assert await talk.all_bodies() == [b"before", b"after"]


@in_loop(with_group)
async def test_a_master_that_was_cut_off_does_not_get_its_old_place_at_name_servers(
    group: Group, /
) -> None:
    first = await group.master_other_than()
    await eventually_routed(group, 0, first.address)
    group.cut(first.host)
    group.controller.elect_without(first.host)

    second = await group.master_other_than(first.host)
    await eventually_routed(group, 0, second.address)
    group.mend(first.host)
    await group.until_slave(first.host)
    own_id = group.id_of(first.host)
    await eventually_routed(group, own_id, first.address)
    await eventually_routed(group, 0, second.address)
