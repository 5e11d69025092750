"""``admin.dead_letters``, against a broker of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.unit.admin.admins import with_admin
from tests.unit.client.dead_letters.dead_lettering import GROUP, dead

from turbopump import MessageNotFoundError
from turbopump.admin.admin import Admin
from turbopump.testing import RunningBroker


@in_loop(with_admin)
async def test_dead_letters_are_listed_and_sent_again_once(
    broker: RunningBroker, admin: Admin, /, tmp_path: Path
) -> None:
    with pytest.raises(MessageNotFoundError, match="has no dead letters"):
        await admin.dead_letters.letters(GROUP)
    await admin.topics.create("orders", read_queues=1, write_queues=1)
    await dead(broker, 3)
    (group,) = await admin.dead_letters.groups()
    assert (group.group, group.count) == (GROUP, 3)
    letters = await admin.dead_letters.letters(GROUP, 2)
    assert [letter.message.body for letter in letters] == [b"0", b"1"]
    assert await admin.dead_letters.reason(letters[0]) is None
    assert (await admin.dead_letters.would_resend(GROUP, tmp_path)).sent == 3
    for sent in (3, 0):
        assert (await admin.dead_letters.resend(GROUP, tmp_path)).sent == sent
    assert [queue.messages for queue in await admin.topics.queues("orders")] == [3]
