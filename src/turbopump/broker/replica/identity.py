"""Id of a replica, given by the controller once and for all.

::

    brokerIdentity-temp   cluster#name#id#checkCode   an id that is being claimed
    brokerIdentity        cluster#name#id             the id of this store

An id is claimed in four steps: ask for the next free id, write the temporary file, apply for the
id, write the file. A crash between any two steps is repaired by the next start, because the
controller gives the same id again to the same check code. Ids of the controller belong to replicas
for ever. The controller itself is unknown here. Source: apache/rocketmq ``ReplicasManager``,
``BrokerMetadata``, ``TempBrokerMetadata``, whose files these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from turbopump.disk.disk import Files
from turbopump.errors import ConfigError
from turbopump.protocol.requests.controller import FIRST_REPLICA_ID


@dataclass(frozen=True, slots=True)
class Claim:
    """Id that a replica applies for, and the code that identifies its application."""

    id: int
    check_code: str


class Identity:
    """Files with the id of one replica.

    - ``path``: the file ``brokerIdentity``. The temporary file lies beside it.
    - ``cluster``, ``name``: the names in the settings of this broker.
    """

    def __init__(self, disk: Files, path: Path, cluster: str, name: str) -> None:
        self._disk = disk
        self._path = path
        self._temporary = path.with_name(path.name + "-temp")
        self._cluster = cluster
        self._name = name

    def load(self) -> int | None:
        """Return the id of this replica, or None if it has none yet.

        Raises ConfigError if the file is damaged, or belongs to a broker of another name. A guessed
        id could be that of another replica.
        """
        data = self._disk.read_file(self._path)
        if data is None:
            return None
        found = _fields(data, 3)
        if found is None:
            raise ConfigError(
                f"{self._path} is damaged: expected cluster#name#id with the id of this replica; "
                "restore it, or remove it and the whole store, to start as a new replica"
            )
        self._check_owner(found[:2], self._path)
        self._disk.remove(self._temporary)
        return int(found[2])

    def load_claim(self) -> Claim | None:
        """Return the claim that an earlier start has begun, or None.

        A damaged claim is dropped, because its id was certainly not used yet. Raises ConfigError if
        the claim is of a broker with another name.
        """
        data = self._disk.read_file(self._temporary)
        found = None if data is None else _fields(data, 4)
        if found is None:
            return None
        self._check_owner(found[:2], self._temporary)
        return Claim(int(found[2]), found[3])

    def write_claim(self, claim: Claim) -> None:
        """Write down a claim before the controller is asked for its id.

        Raises OSError if the file cannot be written.
        """
        text = f"{self._cluster}#{self._name}#{claim.id}#{claim.check_code}"
        self._disk.make_directory(self._path.parent)
        self._disk.replace_file(self._temporary, text.encode())

    def drop_claim(self) -> None:
        """Forget a claim that the controller has refused.

        Raises OSError if the file cannot be removed.
        """
        self._disk.remove(self._temporary)

    def keep(self, replica_id: int) -> None:
        """Write down the id that the controller has given to this replica.

        Raises OSError if the file cannot be written.
        """
        text = f"{self._cluster}#{self._name}#{replica_id}"
        self._disk.replace_file(self._path, text.encode())
        self._disk.remove(self._temporary)

    def _check_owner(self, owner: list[str], path: Path) -> None:
        if owner != [self._cluster, self._name]:
            raise ConfigError(
                f"{path} belongs to brokerClusterName={owner[0]} brokerName={owner[1]}, but the "
                f"settings say {self._cluster} and {self._name}: correct the settings, or use "
                "another storePathRootDir"
            )


def _fields(data: bytes, count: int) -> list[str] | None:
    """Return the fields of a file, or None if it is damaged."""
    fields = data.decode("utf-8", "replace").strip().split("#")
    if len(fields) != count or not all(fields):
        return None
    number = fields[2]
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        return None
    return fields if int(number) >= FIRST_REPLICA_ID else None
