"""A group of replicas without brokers and without a controller: stores and their links, on real
sockets. A story takes the controller's part."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.unit.store.directory import Directory, bodies, put

from turbopump.disk.system_disk import SystemDisk
from turbopump.replication.auto_switch import SlaveHandshake
from turbopump.replication.epochs import EpochFile
from turbopump.replication.handshake import PeerRules
from turbopump.replication.master import MasterSettings
from turbopump.replication.replica_master_link import Mastership, ReplicaMasterLink
from turbopump.replication.replica_slave_link import ReplicaSlaveLink
from turbopump.replication.slave import SlaveSettings
from turbopump.store.message_store import MessageStore
from turbopump.store.truncation import cut_store


class ReplicaStore:
    """Directory of one replica, and the links of its present role."""

    def __init__(self, root: Path, replica_id: int, *, synchronous: bool = False) -> None:
        self.replica_id = replica_id
        self.synchronous = synchronous
        self.directory = Directory(root, is_replica=True, flushed_only=synchronous)
        self.disk = SystemDisk()
        self.store: MessageStore | None = None
        self.master: ReplicaMasterLink | None = None
        self.slave: ReplicaSlaveLink | None = None
        self.address = ""
        self.asked: list[frozenset[int]] = []
        """The sets that the master wanted."""

    def open(self, *, is_copy: bool) -> EpochFile:
        config = self.directory.config
        self.directory = Directory(
            self.directory.paths.root,
            is_replica=True,
            is_copy=is_copy,
            flushed_only=config.flushed_only,
        )
        self.disk = SystemDisk()
        store = self.store = self.directory.open_on(self.disk)
        return EpochFile(self.disk, self.epoch_path, store.log.start, store.log.end)

    @property
    def epoch_path(self) -> Path:
        return self.directory.paths.root / "epochFileCheckpoint"

    async def lead(self, epoch: int, **more: Any) -> ReplicaMasterLink:
        """Open the store as the master of an epoch, alone in the set."""
        epochs = self.open(is_copy=False)
        assert self.store is not None
        link = self.master = ReplicaMasterLink(
            self.store,
            self.disk,
            MasterSettings(heartbeat=0.2),
            epochs,
            Mastership(self.replica_id, epoch, **{"size_min": 2, **more}),
            durable_only=self.synchronous,
            rules=PeerRules(),
            tls=None,
        )
        link.on_wanted_set = self._note_wanted
        host, port = await link.listen("127.0.0.1", 0)
        self.address = f"{host}:{port}"
        link.set_sync_state(frozenset({self.replica_id}), epoch * 100)
        return link

    def _note_wanted(self, ids: frozenset[int], _set_epoch: int) -> None:
        self.asked.append(ids)

    def grant(self) -> None:
        """Answer the last request of this master, as a controller does."""
        assert self.master is not None
        self.master.set_sync_state(self.asked[-1], self.master.set_epoch + 1)

    def follow(self, master: ReplicaStore, epoch: int, *, learner: bool = False) -> None:
        """Open the store as a slave, and copy from a master."""
        epochs = self.open(is_copy=True)
        assert self.store is not None
        link = self.slave = ReplicaSlaveLink(
            self.store,
            self.disk,
            SlaveSettings(heartbeat=0.2),
            epochs,
            SlaveHandshake(False, learner, self.replica_id),
            ack_flushed=self.synchronous,
            flushes=self.synchronous,
            rules=PeerRules(),
            tls=None,
        )
        link.start()
        link.follow(master.address, epoch)

    async def close(self) -> None:
        if self.slave is not None:
            await self.slave.stop()
        if self.master is not None:
            await self.master.close()
        if self.store is not None:
            self.store.close()
        self.slave = self.master = self.store = None

    def cut(self, offset: int) -> None:
        directory = self.directory
        cut_store(
            directory.config, SystemDisk(), directory.clock, offset, directory.failures.append
        )

    def put(self, body: bytes, **more: Any) -> int:
        """Store a message, and show it if it is confirmed, as a broker does after each turn."""
        assert self.store is not None
        end = put(self.store, body, **more).log_end
        if self.synchronous:
            self.store.flusher.flush_log()
        self.store.confirmed.show_confirmed()
        return end

    @property
    def end(self) -> int:
        assert self.store is not None
        return self.store.log.end

    def has(self, end: int) -> bool:
        return self.end >= end

    @property
    def confirmed(self) -> int:
        assert self.store is not None
        return self.store.confirmed.value

    def confirms(self, end: int) -> bool:
        return self.confirmed >= end

    def visible(self, topic: str = "T") -> list[bytes]:
        assert self.store is not None
        return bodies(self.store, topic)

    def epochs(self) -> list[tuple[int, int]]:
        link = self.master or self.slave
        assert link is not None
        return [tuple(one) for one in link.epochs.epochs.epochs]  # type: ignore[misc]


class Group:
    """Replicas with the ids 1, 2, …. All are closed at the end."""

    def __init__(self, root: Path, count: int = 2, *, synchronous: bool = False) -> None:
        self.replicas = [
            ReplicaStore(root / str(number), number, synchronous=synchronous)
            for number in range(1, count + 1)
        ]

    async def __aenter__(self) -> list[ReplicaStore]:
        return self.replicas

    async def __aexit__(self, *_error: object) -> None:
        async with AsyncExitStack() as ends:
            for one in self.replicas:
                ends.push_async_callback(one.close)
