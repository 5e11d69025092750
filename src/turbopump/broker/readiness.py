"""Reasons why a broker is not ready for clients, for probes and for the service manager.

A broker is ready if its store is recovered and accepts writes, if a name server has registered it,
and if it knows its role. Each reason is a sentence for an operator. Probes are unknown here.
"""

from __future__ import annotations

from turbopump.broker.parts import Parts
from turbopump.broker.recovery_progress import RecoveryProgress
from turbopump.config.broker_config import BrokerConfig


class Readiness:
    """Readiness of one broker, from before its store is opened until after the store is closed.

    - ``recovery``: the progress of the recovery of the store.
    """

    def __init__(self, config: BrokerConfig, recovery: RecoveryProgress) -> None:
        self._config = config
        self._parts: Parts | None = None
        self._stopping = False
        self.recovery = recovery

    def note_start(self, parts: Parts) -> None:
        """Record that the store is open, and the ports too."""
        self._parts = parts
        self._stopping = False

    def note_stop(self) -> None:
        """Record that the broker begins to stop."""
        self._stopping = True

    def reasons(self) -> list[str]:
        """Return the reasons why the broker is not ready, or an empty list if it is ready."""
        if self._stopping:
            return ["the broker is stopping"]
        parts = self._parts
        if parts is None:
            percent = self.recovery.percent
            if percent is None:
                return ["the broker is starting: its store is being opened"]
            return [f"the broker is starting: its store is being recovered, {percent} % are done"]
        return [*self._store_faults(parts), *self._unregistered(parts), *self._unknown_role(parts)]

    @staticmethod
    def _store_faults(parts: Parts) -> list[str]:
        stored = parts.stored
        fault = stored.store.fault
        if fault is not None:
            return [f"the store accepts no messages: {fault}"]
        paths = stored.settings.paths
        return [
            f"no file can be made in {path}: its file system is read-only, or its permissions "
            "have changed"
            for path in dict.fromkeys((paths.root, *paths.commit_logs))
            if not stored.disk.is_writable(path)
        ]

    def _unregistered(self, parts: Parts) -> list[str]:
        faults = parts.announcing.registration.faults()
        if not faults:
            return ["no name server is given (namesrvAddr): clients cannot find this broker"]
        if None in faults.values():
            return []
        causes = "; ".join(
            fault if fault is not None and address in fault else f"{address}: {fault}"
            for address, fault in faults.items()
        )
        return [f"the broker is registered with no name server: {causes}"]

    def _unknown_role(self, parts: Parts) -> list[str]:
        if not parts.copying.lacks_master:
            return []
        return [
            "this slave does not know its master: no name server has had a master of "
            f"brokerName={self._config.broker_name} since the start"
        ]
