"""Findings of `turbopump doctor`: facts about servers, topics and groups. Each problem has a
fix."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from turbopump.admin.access import ComparedAccounts
from turbopump.admin.cluster import Servers
from turbopump.clock import Clock

LOG_OF_BROKER: Final = "the broker's log has the details"


class Level(StrEnum):
    """Severity of a finding. One finding with ``WRONG`` makes the cluster unhealthy."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding of `turbopump doctor`.

    - ``subject``: the server, topic or group.
    - ``message``: one sentence that states the fact.
    - ``fix``: advice for a problem, with a command if there is one.
    """

    level: Level
    subject: str
    message: str
    fix: str = ""


class Findings:
    """Findings about one subject, in the order of the checks."""

    def __init__(self, subject: str) -> None:
        self.diagnoses: list[Diagnosis] = []
        self._subject = subject

    def ok(self, message: str) -> None:
        self.diagnoses.append(Diagnosis(Level.OK, self._subject, message))

    def note(self, message: str, fix: str = "") -> None:
        self.diagnoses.append(Diagnosis(Level.NOTE, self._subject, message, fix))

    def wrong(self, message: str, fix: str) -> None:
        self.diagnoses.append(Diagnosis(Level.WRONG, self._subject, message, fix))

    @property
    def healthy(self) -> bool:
        return all(one.level is not Level.WRONG for one in self.diagnoses)


@dataclass(slots=True)
class Examination:
    """Shared state of the checks in one run of the doctor.

    - ``servers``: the connections to the servers.
    - ``masters``: the addresses of the masters that have answered.
    - ``accounts``: the accounts by server address, for servers that show them.
    - ``findings``: the findings so far, in the order in which they are shown.
    """

    servers: Servers
    clock: Clock
    masters: list[str] = field(default_factory=list)
    accounts: dict[str, ComparedAccounts] = field(default_factory=dict)
    findings: list[Findings] = field(default_factory=list)

    def about(self, subject: str) -> Findings:
        """Append an empty list of findings about a subject, and return this list."""
        found = Findings(subject)
        self.findings.append(found)
        return found

    @property
    def n_option(self) -> str:
        """Option -n for suggested commands, with the addresses of the name servers."""
        return self.servers.n_option
