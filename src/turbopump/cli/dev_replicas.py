"""`turbopump dev --replicas N`: a name server, a controller, and a group of replicas to kill.

The name server and the controller run in this process. Each replica is a process of its own, so
that it can be killed alone. A replica that has ended is started again. Changes of the master are
printed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import click

from turbopump.broker.replica.identity import Claim, Identity
from turbopump.cli import main, serving
from turbopump.config import properties
from turbopump.config.addresses import LOOPBACK
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.controller_config import ControllerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.config.setting import effective
from turbopump.controller.server import Controller
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import ConfigError, ProtocolError, RemotingError
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import reply_in
from turbopump.protocol.requests.controller import ApplyBrokerId, GetSyncStateData, ReplicasInfo
from turbopump.remoting.client import RemotingClient

PORT_STEP: Final = 10
"""Difference between the ports of two replicas. Each uses some ports beside its own."""
AGAIN_S: Final = 5.0
"""Seconds after which an ended replica is started again. Meanwhile the others elect a master."""
START_S: Final = 60.0
STOP_S: Final = 15.0
LOOK_S: Final = 0.1
STDIN: Final = 0


class ReplicaProcess:
    """Process of one replica. It is started again when it has ended.

    - ``number``: 1 for the first replica.
    - ``file``: the configuration file. The log is beside it.
    """

    def __init__(self, number: int, file: Path) -> None:
        self.number = number
        self._file = file
        self._log_file = file.with_suffix(".log")
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self.address: str | None = None
        """Address for clients, as the process has printed it last. A free port may change."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that is done when the process is ready for the first time."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"replica {self.number}")

    async def _run(self) -> None:
        while True:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", f"from {__name__} import run_replica; run_replica()"),
                *("broker", "-c", str(self._file), "--log-file", str(self._log_file)),
                stdin=asyncio.subprocess.PIPE,  # its end is the end of this process
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process, which stops the others
            )
            assert process.stdout is not None
            async for line in process.stdout:
                if line.startswith(b"ready broker="):
                    self.address = line.decode().strip().partition("=")[2]
                    if not self.ready.done():
                        self.ready.set_result(None)
            code = await process.wait()
            if self._stopping:
                return
            if not self.ready.done():
                self.ready.set_exception(
                    ConfigError(
                        f"replica {self.number} has not started: read its error above, or "
                        f"{self._log_file}"
                    )
                )
                return
            click.echo(
                f"replica {self.number} (pid {process.pid}) has ended: {_cause(code)}; "
                f"it is started again in {AGAIN_S:.0f} s"
            )
            await asyncio.sleep(AGAIN_S)

    async def stop(self) -> None:
        """Stop the process as SIGTERM does, after ``STOP_S`` seconds as a kill does."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def run_replica() -> None:
    """Run a command in the process of a replica, which ends at once with the process that has
    started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main(sys.argv[1:]))


def _end_with_parent() -> None:
    # Not sys.stdin: a read that waits there aborts the interpreter when the process stops.
    while os.read(STDIN, 4096):
        pass
    os._exit(1)


def _cause(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


@asynccontextmanager
async def running(
    namesrv: NamesrvConfig, broker: BrokerConfig, directory: Path, replicas: int, note: str
) -> AsyncIterator[None]:
    """Run the servers and the replicas until the block ends. ``note`` is about the directory."""
    # GroupWatch prints what the warnings of these servers say. Other levels show them.
    log = logging.getLogger("turbopump")
    if log.getEffectiveLevel() == logging.WARNING:
        for name in ("controller", "namesrv"):
            log.getChild(name).setLevel(logging.ERROR)
    async with AsyncExitStack() as stack:
        disk = SystemDisk(asyncio.get_running_loop().call_soon_threadsafe)
        stack.callback(disk.close)
        kv_path = str(directory / "namesrv" / "kvConfig.json")
        server = NameServer(dataclasses.replace(namesrv, kv_config_path=kv_path), disk=disk)
        stack.push_async_callback(server.close)
        bound = await server.start()
        controller = Controller(
            ControllerConfig(
                bind_address=LOOPBACK,
                listen_port=0,
                controller_store_path=str(directory / "controller"),
            ),
            disk=disk,
        )
        stack.push_async_callback(controller.close)
        await controller.start()
        processes = [
            ReplicaProcess(
                number,
                _write_config(
                    dataclasses.replace(
                        broker,
                        store_path_root_dir=str(directory / f"replica-{number}"),
                        namesrv_addr=serving.reachable(bound, LOOPBACK),
                        enable_controller_mode=True,
                        controller_addr=controller.address,
                        min_in_sync_replicas=min(2, replicas),
                        listen_port=broker.listen_port and broker.listen_port + step,
                        metrics_prom_exporter_port=0,
                    ),
                    directory / f"replica-{number}.conf",
                ),
            )
            for number, step in enumerate(range(0, replicas * PORT_STEP, PORT_STEP), start=1)
        ]
        watch = GroupWatch(controller.address, broker.broker_name, processes)
        stack.push_async_callback(watch.close)
        for process in processes:
            store = directory / f"replica-{process.number}"
            identity = Identity(
                disk, store / "brokerIdentity", broker.broker_cluster_name, broker.broker_name
            )
            await watch.give_id(process.number, broker.broker_cluster_name, identity)
        for process in processes:
            process.start()
        async with asyncio.timeout(START_S):
            await asyncio.gather(*(process.ready for process in processes))
            master = await watch.first_master()
        namesrv_address = serving.reachable(bound, broker.advertised_host)
        click.echo(f"  name server  {namesrv_address}")
        click.echo(f"  controller   {controller.address}")
        for process in processes:
            click.echo(f"  replica {process.number}    {process.address}  pid {process.pid}")
        click.echo(f"  data, logs   {directory}{note}")
        click.echo("  kill -9 PID kills a replica, Ctrl-C stops all")
        click.echo(f"ready namesrv={namesrv_address} broker={master}")
        watch.start()
        yield


def _write_config(config: BrokerConfig, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(properties.encode(effective(config)))
    return file


class GroupWatch:
    """Printed lines about the master of a group and its replicas in sync.

    - ``controller``: the address of the controller.
    - ``name``: the broker name of the group.
    """

    def __init__(self, controller: str, name: str, processes: list[ReplicaProcess]) -> None:
        self._controller = controller
        self._name = name
        self._processes = processes
        self._remoting = RemotingClient()
        self._task: asyncio.Task[None] | None = None

    async def give_id(self, number: int, cluster: str, identity: Identity) -> None:
        """Give a new replica its number as its id, so that all commands show the same numbers.

        A replica whose number is not free gets an id when it starts.
        """
        if identity.load() is not None:
            return
        claim = Claim(number, f"replica-{number}")
        identity.write_claim(claim)
        request = ApplyBrokerId(
            cluster_name=cluster,
            broker_name=self._name,
            applied_broker_id=claim.id,
            register_check_code=claim.check_code,
        )
        answer = await self._remoting.exchange(self._controller, request, timeout=START_S)
        if answer.code == ResponseCode.SUCCESS:
            identity.keep(claim.id)
        else:
            identity.drop_claim()

    async def first_master(self) -> str:
        """Wait until a master is elected, and all replicas are in sync. Return its address."""
        while True:
            info = await self._look()
            if (
                info is not None
                and info.master_address
                and len(info.in_sync_replicas) == len(self._processes)
            ):
                return info.master_address
            await asyncio.sleep(LOOK_S)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="watch of the replicas")

    async def close(self) -> None:
        """Stop all replicas, the master last, and the watch."""
        # That no master can be elected any more is no error now.
        logging.getLogger("turbopump.controller").setLevel(logging.CRITICAL)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        info = await self._look()
        master = None if info is None else info.master_address
        slaves = [one for one in self._processes if one.address != master]
        await asyncio.gather(*(one.stop() for one in slaves))
        await asyncio.gather(*(one.stop() for one in self._processes))
        await self._remoting.close()

    async def _run(self) -> None:
        said = ""
        while True:
            info = await self._look()
            line = said if info is None else self._line(info)
            if line != said:
                click.echo(line)
                said = line
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> ReplicasInfo | None:
        request = GetSyncStateData()
        try:
            answer = await self._remoting.exchange(
                self._controller, request, fastjson.encode([self._name]), timeout=1.0
            )
            return reply_in(answer, request).replicas_info_table.get(self._name)
        except (RemotingError, ProtocolError):
            return None

    def _line(self, info: ReplicasInfo) -> str:
        numbers = {one.address: one for one in self._processes}
        in_sync = sorted(
            numbers[one.broker_address].number
            for one in info.in_sync_replicas
            if one.broker_address in numbers
        )
        members = ", ".join(map(str, in_sync))
        master = numbers.get(info.master_address)
        if master is None or info.master_address is None:
            return f"no master, epoch {info.master_epoch}; in sync: replica {members}"
        return (
            f"master is replica {master.number} (pid {master.pid}), epoch {info.master_epoch}; "
            f"in sync: {members}"
        )
