"""Consumer groups on a broker: 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, 225 the same for a list,
207 DELETE_SUBSCRIPTIONGROUP, 201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 352
GET_SUBSCRIPTIONGROUP_CONFIG. Bodies are in ``bodies.groups``."""

from __future__ import annotations

from typing import ClassVar

from turbopump.message.integers import Int32
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class CreateGroup(Request[None], kw_only=True):
    """Create a group or change it; the body is ``bodies.groups.SubscriptionGroupConfig``."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


class CreateGroupList(Request[None], kw_only=True):
    """Create or change several; the body is ``bodies.groups.SubscriptionGroupList``."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST


class DeleteGroup(Request[None], kw_only=True):
    """Forget a group's settings and, with ``clean_offset``, how far it is."""

    code: ClassVar[int] = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    clean_offset: bool = False


class GetAllGroupsReply(Reply, kw_only=True):
    """Of 5.3.4 and later; absent before."""

    total_group_num: Int32 | None = None


class GetAllGroups(Request[GetAllGroupsReply], kw_only=True):
    """Every group of a broker; the body of the answer is
    ``bodies.groups.SubscriptionGroupWrapper``."""

    code: ClassVar[int] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    reply: ClassVar[type[GetAllGroupsReply]] = GetAllGroupsReply

    group_seq: Int32 | None = None
    max_group_num: Int32 | None = None
    data_version: str | None = None


class GetGroup(Request[None], kw_only=True):
    """One group of a broker; the body of the answer is
    ``bodies.groups.SubscriptionGroupConfig``."""

    code: ClassVar[int] = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str
