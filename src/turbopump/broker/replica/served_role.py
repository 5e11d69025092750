"""Role in which one broker of a replica is opened, and the requests that only replicas serve.

The supervisor (``replica.py``) makes it, and a broker keeps it for its life. Controllers are
unknown here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turbopump.broker.replica.role import News, Role
from turbopump.broker.replica.send_gate import SendGate
from turbopump.remoting.listening_port import KeptSockets


async def _keep_mastership(_successor: int) -> str | None:
    return "nobody runs this replica"


@dataclass(eq=False)
class ServedRole:
    """Role of a broker that a controller manages.

    - ``role``: the role, which changes while the broker runs. Its part stays.
    - ``gate``: the gate before requests that store messages.
    - ``sockets``: the listening sockets, which the brokers of this process leave to each other.
    - ``ha_port``: the replication port of an earlier broker of this process, or None.
    - ``on_wanted_set``: called with the replicas that a master wants in the sync state set, and
      the epoch of the present set.
    - ``on_cut_needed``: called with the offset to which the log must be cut, before it can be
      copied.
    - ``on_master_lost``: called when the connection over which a slave copied has ended.
    - ``note_role``: called with a notice of a controller (1008).
    - ``hand_over``: lets the replica with an id become the master in place of this one. Returns
      None, or the reason why that is not done.
    """

    role: Role
    gate: SendGate
    sockets: KeptSockets
    ha_port: int | None = None
    note_role: Callable[[News], None] = lambda _news: None
    on_wanted_set: Callable[[frozenset[int], int], None] = lambda _ids, _set_epoch: None
    on_cut_needed: Callable[[int], None] = lambda _offset: None
    on_master_lost: Callable[[], None] = lambda: None
    hand_over: Callable[[int], Awaitable[str | None]] = _keep_mastership
