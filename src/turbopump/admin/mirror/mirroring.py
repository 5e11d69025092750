"""Mirror of topics: which topics and queues are copied, how their topics are made in the target,
and the report.

One rule: a topic or a queue that cannot be mirrored does not keep the others from it. Its error is
in the report. Copying of one queue is in ``queue_mirror.py``, positions of groups in
``group_positions.py``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from msgspec import structs

from turbopump.admin.admin import Admin
from turbopump.admin.cluster import Servers
from turbopump.admin.mirror.group_positions import GroupPositions
from turbopump.admin.mirror.mirrored_cluster import MirroredCluster
from turbopump.admin.mirror.queue_mirror import QueueMirror
from turbopump.admin.topics import put_topic, users_topics
from turbopump.errors import ConfigError, MirrorError, TurbopumpError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX, did_you_mean, is_system_topic
from turbopump.protocol.requests.namesrv import MASTER_ID
from turbopump.protocol.requests.topics import PERM_READ, PERM_WRITE, TopicConfig

log = logging.getLogger(__name__)

REFRESH_S: Final = 10.0
"""Seconds after which new topics and queues are found, and positions of groups are set."""
SHOWN_S: Final = 1.0
"""Seconds between two reports of progress."""
PATIENCE_S: Final = 60.0
"""Seconds for which a failing request is repeated, if the mirror does not follow."""
STOP_S: Final = 15.0
"""Seconds for which a stop waits for batches that are under way."""
_NAME: Final = re.compile(r"[^\s/\x00-\x1f]+")


@dataclass(kw_only=True)
class MirrorReport:
    """Counts and outcome of one run of ``mirror``. ``sent`` and the next four are numbers of
    messages.

    - ``topics``, ``queues``: numbers of mirrored topics and queues.
    - ``sent``: stored in the target by this run.
    - ``repeated``: stored in the target once more.
    - ``lost``: deleted by the source before they were read.
    - ``returned``: came from the target cluster, and are not sent back.
    - ``damaged``: left out, because their bytes are damaged at the source.
    - ``positions``: number of positions of groups that were set in the target.
    - ``notes``: a sentence for each group, queue or topic that an operator should look at.
    - ``failed``: reason by topic or queue that is not mirrored.
    - ``behind``: number of messages that are not copied yet, by source queue.
    """

    topics: int = 0
    queues: int = 0
    sent: int = 0
    repeated: int = 0
    lost: int = 0
    returned: int = 0
    damaged: int = 0
    positions: int = 0
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    behind: dict[MessageQueue, int] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: bool = False

    @property
    def agrees(self) -> bool:
        """True if every message that the source has is in the target, or comes from there."""
        return not self.failed and not self.damaged and (self.stopped or not self.left)

    @property
    def left(self) -> int:
        """Number of messages that are not copied yet."""
        return sum(self.behind.values())


async def mirror(
    source: Admin,
    target: Admin,
    topics: Sequence[str],
    *,
    follow: bool = False,
    groups: bool = False,
    skip_lost: bool = False,
    source_name: str | None = None,
    target_name: str | None = None,
    brokers: Mapping[str, str] | None = None,
    stop: asyncio.Event | None = None,
    on_progress: Callable[[MirrorReport], None] = lambda report: None,
) -> MirrorReport:
    """Copy topics of one cluster into another, in the order of each queue, and return a report.

    Body, tags, keys, properties, flag, message id, born time and born host stay. A topic that the
    target lacks is made there with the same queues and attributes. Each message is stored at least
    once; a second copy is possible only around a kill or a lost answer.

    - ``topics``: names, or patterns with ``*`` and ``?``.
    - ``follow``: continue until ``stop`` is set, also with topics that are made later. Without it,
      the run ends at the present ends of the queues.
    - ``groups``: set the positions of groups in the target.
    - ``skip_lost``: continue after messages that the source has deleted.
    - ``source_name``, ``target_name``: names of the clusters in the marks of copies. By default the
      names that the brokers have.
    - ``brokers``: target broker by source broker, if their names differ.
    - ``stop``: the run ends after the batches that are under way.
    - ``on_progress``: called about once a second with the report so far.

    Raises ConfigError for unusable arguments, and RemotingError if a name server cannot be asked at
    the beginning. Errors of single topics and queues are in the report.
    """
    run = MirrorRun(
        source,
        target,
        _checked_topics(topics),
        follow,
        skip_lost,
        dict(brokers or {}),
        stop or asyncio.Event(),
        on_progress,
    )
    await run.begin(source_name, target_name, groups=groups)
    return await run.finish()


def _checked_topics(topics: Sequence[str]) -> list[str]:
    if isinstance(topics, str):
        topics = [topics]
    for topic in topics:
        why = None
        if topic.startswith(RETRY_PREFIX):
            why = "messages that wait for a retry belong to their group at the source"
        elif topic.startswith(DLQ_PREFIX):
            why = "dead letters are read and sent again with `turbopump dlq`"
        elif is_system_topic(topic):
            why = "it is a topic of RocketMQ's own, and each cluster has its own messages in it"
        if why is not None:
            raise ConfigError(f"{topic} is not mirrored: {why}")
    if not topics:
        raise ConfigError("no topic is given: expected names, or patterns such as 'orders-*'")
    return list(topics)


def _is_pattern(topic: str) -> bool:
    return "*" in topic or "?" in topic


@dataclass(eq=False)
class MirrorRun:
    """One run of ``mirror``."""

    _source_admin: Admin
    _target_admin: Admin
    _topics: list[str]
    _follow: bool
    _skip_lost: bool
    _brokers: dict[str, str]
    _stop: asyncio.Event
    _on_progress: Callable[[MirrorReport], None]
    report: MirrorReport = field(default_factory=MirrorReport)
    _mirrors: dict[MessageQueue, QueueMirror] = field(default_factory=dict)
    _tasks: dict[MessageQueue, asyncio.Task[None]] = field(default_factory=dict)
    _ended: list[QueueMirror] = field(default_factory=list)
    _groups: GroupPositions | None = None

    # --- start

    async def begin(
        self, source_name: str | None, target_name: str | None, *, groups: bool
    ) -> None:
        """Connect to both clusters, and start to mirror the topics that exist now."""
        self._began = asyncio.get_running_loop().time()
        patience = None if self._follow else PATIENCE_S
        servers = self._source_admin.servers, self._target_admin.servers
        names = [
            await _cluster_name(servers[0], source_name, "--from-name"),
            await _cluster_name(servers[1], target_name, "--to-name"),
        ]
        if names[0] == names[1]:
            raise ConfigError(
                f"both clusters are called {names[0]}: give them different names with --from-name "
                "and --to-name, the same in every run. A mirror in the other direction has them "
                "swapped"
            )
        self._source, self._target = (
            MirroredCluster(each, name, patience) for each, name in zip(servers, names, strict=True)
        )
        await self._source.refresh()
        await self._target.refresh()
        if groups:
            self._groups = GroupPositions(self._source_admin, self._target_admin, self._mirrors)
        await self._find_topics()

    async def _find_topics(self) -> None:
        """Start to mirror the queues of wanted topics that are not mirrored yet.

        Raises RemotingError if a broker cannot be asked for its topics.
        """
        there = await _all_topics(self._source_admin, self._source)
        here = await _all_topics(self._target_admin, self._target)
        known = sorted({name for table in there.values() for name in table})
        for topic in self._topics:
            if not _is_pattern(topic) and topic not in known:
                near = did_you_mean(topic, known)
                self._fail(topic, f"cluster {self._source.name} has no topic {topic}{near}")
        wanted = [name for name in known if any(fnmatchcase(name, each) for each in self._topics)]
        for topic in wanted:
            try:
                for broker, table in there.items():
                    if topic in table:
                        await self._prepare(topic, broker, table[topic], here)
            except TurbopumpError as error:
                self._fail(topic, str(error))
            else:
                self.report.failed.pop(topic, None)
        self.report.topics = len(wanted)

    async def _prepare(
        self,
        topic: str,
        broker: str,
        settings: TopicConfig,
        here: Mapping[str, Mapping[str, TopicConfig]],
    ) -> None:
        """Make a topic of one broker in the target if it is missing, and start its queues."""
        if not settings.readable:
            raise MirrorError(
                f"topic {topic} may not be read on broker {broker} (perm {settings.perm}): "
                f"turbopump topic alter {topic} --perm 6"
            )
        twin = self._target_broker(broker)
        queues = max(settings.read_queue_nums, settings.write_queue_nums)
        present = here.get(twin, {}).get(topic)
        if present is None:
            log.info("topic is made in the target topic=%s broker=%s", topic, twin)
            wanted = structs.replace(
                settings,
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=settings.perm | PERM_READ | PERM_WRITE,
            )
            await put_topic(
                self._target.servers, self._target.address(twin), wanted, settings.attributes
            )
        else:
            self._refuse_unfit(topic, twin, present, settings.read_queue_nums)
        for number in range(settings.read_queue_nums):
            source_queue = MessageQueue(topic, broker, number)
            task = self._tasks.get(source_queue)
            if task is None or (task.done() and self._follow):
                self._start_queue(source_queue, MessageQueue(topic, twin, number))

    def _refuse_unfit(self, topic: str, broker: str, present: TopicConfig, queues: int) -> None:
        where = f"on broker {broker} of cluster {self._target.name}"
        alter = f"turbopump topic alter {topic} {self._target.servers.n_option} --broker {broker}"
        if present.write_queue_nums < queues:
            raise MirrorError(
                f"topic {topic} has {present.write_queue_nums} queues {where}, and {queues} at the "
                f"source: {alter} --queues {queues}"
            )
        if not present.writable:
            raise MirrorError(
                f"topic {topic} may not be written {where} (perm {present.perm}): {alter} --perm 6"
            )

    def _target_broker(self, broker: str) -> str:
        """Return the broker of the target that gets the messages of a source broker."""
        if broker in self._brokers:
            twin = self._brokers[broker]
        elif broker in self._target.brokers:
            twin = broker
        else:
            ours, theirs = sorted(self._source.brokers), sorted(self._target.brokers)
            if self._brokers or len(ours) != len(theirs) or set(ours) & set(theirs):
                raise MirrorError(
                    f"no broker of cluster {self._target.name} is the counterpart of {broker}: "
                    f"give it with --broker {broker}=NAME; there are: {', '.join(theirs)}"
                )
            twin = theirs[ours.index(broker)]
        if twin not in self._target.brokers:
            raise MirrorError(f"cluster {self._target.name} has no broker {twin}")
        return twin

    def _start_queue(self, source_queue: MessageQueue, target_queue: MessageQueue) -> None:
        before = self._mirrors.get(source_queue)
        if before is not None:
            self._ended.append(before)
        one = QueueMirror(
            self._source, self._target, source_queue, target_queue, self._follow, self._skip_lost
        )
        self._mirrors[source_queue] = one
        self._tasks[source_queue] = asyncio.create_task(self._run_queue(one))

    async def _run_queue(self, one: QueueMirror) -> None:
        name = str(one.source_queue)
        try:
            await one.run()
        except TurbopumpError as error:
            self._fail(name, str(error))

    def _fail(self, name: str, why: str) -> None:
        if self.report.failed.get(name) != why:
            log.error("not mirrored name=%s cause=%s", name, why)
            self.report.failed[name] = why

    # --- until the end

    async def finish(self) -> MirrorReport:
        """Wait for the end of all queues, or for ``stop``. Return the report."""
        now = asyncio.get_running_loop().time
        refreshed = now()
        stopping = asyncio.create_task(self._stop.wait())
        ended = stopping if self._follow else asyncio.create_task(self._wait_for_queues())
        try:
            while not self._stop.is_set() and (self._follow or self._running()):
                await asyncio.wait({stopping, ended}, timeout=SHOWN_S, return_when=FIRST_COMPLETED)
                self._show()
                self._raise_faults()
                if now() - refreshed >= REFRESH_S and not self._stop.is_set():
                    await self._refresh()
                    refreshed = now()
            self.report.stopped = self._stop.is_set() and (self._follow or bool(self._running()))
            for one in self._mirrors.values():
                one.stop()
            if self._running():
                await asyncio.wait(self._running(), timeout=STOP_S)
            self._raise_faults()
            try:
                await self._set_positions()
            except TurbopumpError as error:
                self._fail("groups", f"the last positions are not set: {error}")
        finally:
            tasks = (stopping, ended, *self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._show()
        return self.report

    async def _wait_for_queues(self) -> bool:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        return True

    def _raise_faults(self) -> None:
        """Raise the error of a queue's task that is not about its topic or cluster."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()

    def _running(self) -> list[asyncio.Task[None]]:
        return [task for task in self._tasks.values() if not task.done()]

    async def _refresh(self) -> None:
        """Find new topics and queues, and set positions of groups."""
        try:
            if self._follow:
                await self._source.refresh()
                await self._target.refresh()
                await self._find_topics()
            await self._set_positions()
        except TurbopumpError as error:
            log.warning("topics and groups not looked at, trying again cause=%s", error)

    async def _set_positions(self) -> None:
        if self._groups is not None:
            self.report.positions += await self._groups.set_all()
            self.report.notes = list(self._groups.notes)

    def _show(self) -> None:
        report = self.report
        each = [one.counts for one in (*self._ended, *self._mirrors.values())]
        report.queues = len(self._mirrors)
        report.sent = sum(one.sent for one in each)
        report.repeated = sum(one.repeated for one in each)
        report.lost = sum(one.lost for one in each)
        report.returned = sum(one.returned for one in each)
        report.damaged = sum(one.damaged for one in each)
        report.behind = {queue: one.behind for queue, one in self._mirrors.items()}
        report.seconds = asyncio.get_running_loop().time() - self._began
        for queue, task in self._tasks.items():
            if not task.done() and self._mirrors[queue].ready:
                report.failed.pop(str(queue), None)
        self._on_progress(report)


async def _cluster_name(servers: Servers, given: str | None, option: str) -> str:
    """Return the name of a cluster in marks. Raises ConfigError if it cannot be one."""
    name = given
    if name is None:
        clusters = sorted((await servers.brokers()).cluster_addr_table)
        if len(clusters) != 1:
            raise ConfigError(
                f"the name server {servers.name_servers[0]} knows {len(clusters)} clusters: give "
                f"a name for them with {option}"
            )
        name = clusters[0]
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a cluster in marks, because it has a blank or a /: "
            f"give another one with {option}"
        )
    return name


async def _all_topics(admin: Admin, cluster: MirroredCluster) -> dict[str, dict[str, TopicConfig]]:
    """Return the settings of users' topics, by broker and topic. Raises RemotingError."""
    masters = [name for name, broker in cluster.brokers.items() if MASTER_ID in broker.broker_addrs]
    info = await cluster.servers.brokers()
    found = {}
    for name in sorted(masters):
        table = await admin.topics.all_settings(cluster.address(name), system=True)
        found[name] = {topic: table[topic] for topic in users_topics(table, info)}
    return found
