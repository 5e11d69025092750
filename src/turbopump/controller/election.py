"""Choice of a new master among the live replicas of a broker name.

Only members of the sync state set may be elected, because they have every acknowledged message. A
member whose log ends before the highest confirm offset that a master has reported has lost
messages, for example in a power cut, and is not elected either. With unclean elections
(``enableElectUncleanMaster``) any live replica may become the master, and messages may be lost.

Pure: values in, values out. Offsets are compared as 64-bit numbers. (RocketMQ: the comparison of
`DefaultElectPolicy` overflows for logs that differ by more than 2 GiB, and equal replicas count as
one.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

NO_PRIORITY: Final = 2**31 - 1
"""Priority of a replica that reports none. Smaller numbers are elected first."""


class Candidate(NamedTuple):
    """Live replica, with what its last heartbeat reported.

    - ``epoch``: master epoch of the last messages in its log.
    - ``max_offset``: end of its log.
    - ``priority``: ``brokerElectionPriority``.
    - ``acknowledges_alone``: False if the replica, as the master, confirms nothing while it is the
      only member of its set.
    """

    id: int
    epoch: int
    max_offset: int
    priority: int = NO_PRIORITY
    acknowledges_alone: bool = True


class Election(NamedTuple):
    """Result of an election.

    - ``elected``: id of the new master, or None if nobody could be elected.
    - ``candidates``: the live members of the sync state set, or in an unclean election all live
      replicas, the best first.
    - ``behind``: the candidates whose logs lack confirmed messages.
    - ``unclean``: True if messages may be lost.
    """

    elected: int | None
    candidates: tuple[Candidate, ...]
    behind: tuple[Candidate, ...] = ()
    unclean: bool = False


def rank(candidate: Candidate) -> tuple[int, int, int, int]:
    """Return the sort key of a candidate: the best one has the smallest key.

    The order is epoch, end of the log, priority, id.
    """
    return (-candidate.epoch, -candidate.max_offset, candidate.priority, candidate.id)


def elect(
    in_sync: Iterable[Candidate],
    live: Iterable[Candidate],
    *,
    confirmed: int,
    unclean: bool = False,
    only: int | None = None,
) -> Election:
    """Elect a master.

    - ``in_sync``: the live members of the sync state set.
    - ``live``: all live replicas.
    - ``confirmed``: the highest confirm offset that a master has reported.
    - ``only``: id of the one replica that may be elected, or None.
    """
    members = sorted(in_sync, key=rank)
    behind = tuple(one for one in members if one.max_offset < confirmed)
    for one in members:
        if one not in behind and only in (None, one.id):
            return Election(one.id, tuple(members), behind)
    if unclean:
        everyone = sorted(live, key=rank)
        for one in everyone:
            if only in (None, one.id):
                return Election(one.id, tuple(everyone), behind, unclean=True)
    return Election(None, tuple(members), behind)


def elect_first(live: Iterable[Candidate], asker: int | None) -> Election:
    """Elect the first master of a broker name.

    The replica that asks is elected, unless another live one has more in its log. ``asker`` is
    None if no replica asks. RocketMQ: elects the replica that asks.
    """
    known = {one.id: one for one in live}
    everyone = sorted(known.values(), key=rank)
    if asker is None:
        return Election(everyone[0].id if everyone else None, tuple(everyone))
    own = known.get(asker, Candidate(asker, -1, -1))
    for one in everyone:
        if (one.epoch, one.max_offset) > (own.epoch, own.max_offset):
            return Election(one.id, tuple(everyone))
        break
    return Election(asker, tuple(everyone))
