"""Handler of requests about the settings and bans of consumer groups (200, 201, 207, 225, 352 and
353).

Source: apache/rocketmq ``AdminBrokerProcessor.updateAndCreateSubscriptionGroup`` and its
neighbours.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.pop.group_queue import TopicGroup
from turbopump.broker.pop.held_pops import HeldPops
from turbopump.broker.saved_table import not_saved, table_answer
from turbopump.broker.send_checks import topic_name_fault
from turbopump.broker.statistics import Statistics
from turbopump.broker.tables import Tables
from turbopump.message.rules import group_fault
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import groups as requests
from turbopump.protocol.requests.topics import QUEUES_MAX
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router

log = logging.getLogger(__name__)


@dataclass(eq=False)
class GroupsHandler:
    """Handler of requests to create, change, list, ban and delete consumer groups."""

    tables: Tables
    held_pulls: HeldPulls
    held_pops: HeldPops
    statistics: Statistics

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(requests.UpdateGroupForbidden, self.ban)
        router.add_with_body(requests.CreateGroup, self.create)
        router.add_with_body(requests.CreateGroupList, self.create_list)
        router.add(requests.DeleteGroup, self.delete)
        router.add(requests.GetAllGroups, self.list_all)
        router.add(requests.GetGroup, self.get_group)

    async def create(
        self,
        _request: requests.CreateGroup,
        config: requests.SubscriptionGroupConfig,
        context: RequestContext,
    ) -> Response[None]:
        return await self._create_groups([config], context)

    async def create_list(
        self,
        _request: requests.CreateGroupList,
        body: requests.SubscriptionGroupList,
        context: RequestContext,
    ) -> Response[None]:
        """Create several consumer groups. If one group is invalid, create none of them.

        A group is invalid if its name is, or if it has too many queues.
        """
        return await self._create_groups(body.group_config_list, context)

    async def delete(
        self, request: requests.DeleteGroup, context: RequestContext
    ) -> Response[None]:
        """Delete a consumer group. An unknown group is no error, as with Apache's broker."""
        self.tables.groups.delete(request.group_name)
        self.statistics.forget_group(request.group_name)
        if request.clean_offset:
            await context.in_turns(self.tables.offsets.forget_group(request.group_name))
        return await not_saved(self.tables.groups, self.tables.offsets) or Response()

    async def list_all(
        self, request: requests.GetAllGroups, _context: RequestContext
    ) -> Response[requests.GetAllGroupsReply]:
        body, ext = await table_answer(self.tables.groups, request.known_version, request.held)
        reply = requests.GetAllGroupsReply(total_group_num=self.tables.groups.count)
        return Response(reply, body=body, ext=ext)

    def get_group(
        self, request: requests.GetGroup, _context: RequestContext
    ) -> Response[requests.SubscriptionGroupConfig]:
        found = self.tables.groups.get(request.group)
        if found is None:
            return refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return Response(found)

    async def ban(
        self, request: requests.UpdateGroupForbidden, context: RequestContext
    ) -> Response[requests.GroupForbidden]:
        """Ban a consumer group from a topic, or end the ban. Return the group's permission.

        A request without a change only returns the permission. A ban also ends the waiting requests
        of the group.
        """
        group = request.group
        topic = request.topic
        if request.readable is not None:
            fault = group_fault(group) or topic_name_fault(topic)
            if fault is not None:
                return refusal(ResponseCode.INVALID_PARAMETER, fault)
            if self.tables.groups.is_banned(group, topic) == request.readable:
                self.tables.groups.ban(group, topic, banned=not request.readable)
                log.info(
                    "ban changed group=%s topic=%s readable=%s by=%s",
                    group,
                    topic,
                    request.readable,
                    context.peer.peer,
                )
            if not request.readable:
                self.held_pulls.expire_topic(topic)
                self.held_pops.expire_group(TopicGroup(topic, group))
        refused = None if request.readable is None else await not_saved(self.tables.groups)
        readable = not self.tables.groups.is_banned(group, topic)
        body = requests.GroupForbidden(group=group, topic=topic, readable=readable)
        return refused or Response(body)

    async def _create_groups(
        self, configs: list[requests.SubscriptionGroupConfig], context: RequestContext
    ) -> Response[None]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        answer = await self._put_groups(configs, context)
        self.statistics.events.creations.count_groups(answer, loop.time() - begun)
        return answer

    async def _put_groups(
        self, configs: list[requests.SubscriptionGroupConfig], context: RequestContext
    ) -> Response[None]:
        for config in configs:
            await context.served.turns.pause()
            fault = group_fault(config.group_name or "")
            if fault is None and config.retry_queue_nums > QUEUES_MAX:
                fault = f"retryQueueNums is {config.retry_queue_nums}; give {QUEUES_MAX} at most"
            if fault is not None:
                return refusal(ResponseCode.INVALID_PARAMETER, fault)
        for config in configs:
            await context.served.turns.pause()
            self.tables.groups.put(config)
        return await not_saved(self.tables.groups) or Response()
