"""Answers to 200, 225, 207, 201 and 352: the settings of consumer groups.

Source: apache/rocketmq ``AdminBrokerProcessor.updateAndCreateSubscriptionGroup`` and its
neighbours.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from turbopump.broker.groups import GroupTable
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.errors import BodyError, ProtocolError
from turbopump.message.rules import group_fault
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import (
    CreateGroup,
    CreateGroupList,
    DeleteGroup,
    GetAllGroups,
    GetAllGroupsReply,
    GetGroup,
)
from turbopump.remoting.router import RequestContext, Response

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


class GroupsHandler:
    """Makes, changes, lists and forgets groups."""

    def __init__(self, groups: GroupTable, offsets: ConsumerOffsets) -> None:
        self._groups = groups
        self._offsets = offsets

    def create(self, _request: CreateGroup, context: RequestContext) -> Response:
        return self._put([_body(context, SubscriptionGroupConfig)])

    def create_list(self, _request: CreateGroupList, context: RequestContext) -> Response:
        """All of them, or none if one has no legal name."""
        return self._put(_body(context, SubscriptionGroupList).group_config_list)

    def delete(self, request: DeleteGroup, _context: RequestContext) -> Response:
        """Says nothing if there is no such group, as Apache's."""
        self._groups.delete(request.group_name)
        if request.clean_offset:
            self._offsets.forget_group(request.group_name)
        return Response()

    def list_all(self, _request: GetAllGroups, _context: RequestContext) -> Response:
        table = self._groups.wrapper()
        return Response(
            GetAllGroupsReply(total_group_num=len(table.subscription_group_table)),
            body=fastjson.encode(table),
        )

    def one(self, request: GetGroup, _context: RequestContext) -> Response:
        if not self._groups.knows(request.group):
            return Response(
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="No group in this broker"
            )
        return Response(body=fastjson.encode(self._groups.find(request.group)))

    def _put(self, configs: list[SubscriptionGroupConfig]) -> Response:
        for config in configs:
            fault = group_fault(config.group_name or "")
            if fault is not None:
                return Response(code=ResponseCode.INVALID_PARAMETER, remark=fault)
        for config in configs:
            self._groups.put(config)
        return Response()


def _body(context: RequestContext, type_: type[BodyT]) -> BodyT:
    try:
        return fastjson.decode(context.body, type_)
    except ProtocolError as error:
        raise BodyError(f"the body cannot be read as {type_.__name__}: {error}") from None
