"""Checks of any server, name server or broker: answers, certificates, accounts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from turbopump.admin.access import accounts_at, differing_accounts
from turbopump.admin.doctor.diagnosis import LOG_OF_BROKER, Examination, Findings
from turbopump.errors import ConnectError, ResponseError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.remoting.client import refused_by
from turbopump.remoting.tls import expiry_warning, peer_certificate_end


def refuse_failure(answer: Command, request: Request[Any], address: str) -> None:
    """Raise ResponseError if the answer of a server is not a success."""
    if answer.code != ResponseCode.SUCCESS:
        raise refused_by(address, request, answer)


async def check_security(examination: Examination, found: Findings, address: str) -> None:
    """Check the TLS certificate and the accounts file of a server. Call this after its first
    answer."""
    connection = examination.servers.connection(address)
    end = None
    if connection is not None:
        end = peer_certificate_end(connection.transport)
    if end is not None:
        now = datetime.fromtimestamp(examination.clock.now_ms() / 1000, UTC)
        warning = expiry_warning(end, now)
        if warning is not None:
            found.wrong(
                f"its TLS certificate {warning}",
                "write the new one over tls.server.certPath and tls.server.keyPath: the server "
                "loads it at once, without a restart",
            )
    accounts = await accounts_at(examination.servers, address)
    if accounts is None:
        return  # the server has no access control, or does not show its accounts
    examination.accounts[address] = accounts
    if accounts.warning:
        found.wrong(
            accounts.warning, "if others may have read the file, also give its users new passwords"
        )


def compare_accounts(examination: Examination) -> None:
    """Report differences between the users of these servers: all name servers and all masters.

    Each of these servers keeps its own users. `admin.replication` compares slaves with their
    master.
    """
    found = examination.about("accounts")
    addresses = (*examination.servers.name_servers, *examination.masters)
    shown = [examination.accounts[one] for one in addresses if one in examination.accounts]
    complete = [one for one in shown if one.accounts is not None]
    for other in complete[1:]:
        first = complete[0]
        differing = differing_accounts(first, other)
        if differing is not None:
            found.note(
                f"{other.server} has other users and policies than {first.server}: {differing}",
                "make the missing change with turbopump auth user|policy … (all servers; with "
                "--server ADDR one of them)",
            )


def fix_for_tls(error: ConnectError) -> str | None:
    """Return the fix for a failed TLS connection, or None for another error."""
    text = str(error)
    if "certificate has expired" in text:
        return "write a new one over tls.server.certPath and tls.server.keyPath"
    if "certificate is not trusted" in text:
        return (
            "name its certificate, or the one that signed it, with --tls-trust FILE; the "
            "certificate must be issued for the name or address in use"
        )
    if text.startswith("no TLS connection"):
        return "its tls.server.certPath is not set, or TLS is off: read the reason in its log"
    return None


def fix_for_refusal(error: ResponseError) -> str:
    if error.code == ResponseCode.NO_PERMISSION:
        return "access control is on: give a permitted user with --credentials FILE"
    return LOG_OF_BROKER
