"""Background copy of a master's users and policies to a slave.

So users can log in to the slave when the master is gone. The master's accounts replace every local
change. Only sealed accounts are accepted (``auth/sealing.py``): both sides have proved that they
know ``innerClientAuthenticationCredentials``, and nobody between them has read or changed anything.
Accounts are copied even if the log is not, because a slave that its master refuses still answers
readers. Apache's masters show no passwords, so nothing is copied from them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Final

from turbopump.auth.accounts import Accounts
from turbopump.auth.sealing import NONCE_SIZE, unseal, version_of
from turbopump.auth.server_access import ServerAccess
from turbopump.auth.signatures import Credentials
from turbopump.broker.background import stop_task
from turbopump.errors import RemotingError, ResponseError, TurbopumpError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.access import SEALED, ListUsers
from turbopump.remoting.client import RemotingClient

log = logging.getLogger(__name__)

EVERY_S: Final = 0.5
AGAIN_S: Final = 3.0
"""Seconds between a failed attempt and the next one."""
ANSWER_S: Final = 5.0


class SlaveAccounts:
    """Background copy of a master's users and policies to a slave.

    - ``credentials``: the account that all brokers of the cluster share.
    - ``master``: a function that returns the address of the master, or None while it is
      unknown.
    - ``by_records``: a function that returns True while the log of the master brings the
      changes of its accounts.
    """

    def __init__(
        self,
        access: ServerAccess,
        credentials: Credentials,
        remoting: RemotingClient,
        master: Callable[[], str | None],
        by_records: Callable[[], bool] = lambda: False,
    ) -> None:
        access.copies_master = True
        self.rounds = 0
        """Number of answers that were accepted from a master."""
        self._access = access
        self._secret = credentials.secret_key
        self._remoting = remoting
        self._master = master
        self._by_records = by_records
        self._fault: str | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to copy the accounts in the background."""
        self._task = asyncio.create_task(self._run(), name="copying the master's accounts")

    async def stop(self) -> None:
        """Stop copying. The method may be called twice."""
        await stop_task(self._task)

    async def _run(self) -> None:
        while True:
            master = self._master()
            pause = EVERY_S
            is_copied = self._fault is None and self._by_records()
            if master is not None and not is_copied:
                try:
                    await self._copy_accounts(master)
                    self._log_change(master, None)
                except (TurbopumpError, OSError) as error:
                    self._log_change(master, str(error))
                    pause = AGAIN_S
                except Exception:
                    log.exception("the master's users cannot be copied, tried again")
                    pause = AGAIN_S
            await asyncio.sleep(pause)

    def _log_change(self, master: str, fault: str | None) -> None:
        if fault is not None and fault != self._fault:
            log.warning(
                "users and policies stay as they are, and may differ from the master's "
                "master=%s cause=%s",
                master,
                fault,
            )
        elif fault is None and self._fault is not None:
            log.info("users and policies are copied again master=%s", master)
        self._fault = fault

    async def copy_once(self, master: str) -> None:
        """Copy the accounts of the master once. A failure is logged and no error.

        The accounts are then copied in the background.
        """
        try:
            await self._copy_accounts(master)
            self._log_change(master, None)
        except (TurbopumpError, OSError) as error:
            self._log_change(master, str(error))

    async def _copy_accounts(self, master: str) -> None:
        """Copy the accounts of the master once, if they differ from the accounts of this slave.

        If accounts are changed here during the copy, that change stays until the next copy. Raises
        RemotingError if the master does not answer or shows no passwords. Raises ProtocolError,
        ConfigError or OSError if the accounts cannot be read or saved. After an error nothing has
        changed.
        """
        before = self._access.control.accounts
        nonce = secrets.token_hex(NONCE_SIZE)
        request = ListUsers(nonce=nonce, known_version=version_of(before.encode(), self._secret))
        answer = await self._remoting.exchange(master, request, timeout=ANSWER_S)
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError(answer.code, answer.remark, request="ListUsers", address=master)
        if SEALED not in (answer.ext or {}):
            raise RemotingError(
                f"the broker at {master} shows no passwords, as Apache's and older ones: make the "
                "same changes on all brokers (turbopump auth does)"
            )
        content = unseal(answer.body, self._secret, nonce)

        def replaced(now: Accounts) -> Accounts:
            if now != before:  # changed here meanwhile
                return now
            return Accounts.decode(content)

        if content:
            # in the thread of the disk: thousands of users take seconds
            await self._access.change(replaced, lost=before)
            log.info(
                "users and policies copied master=%s users=%d",
                master,
                len(self._access.control.accounts.users),
            )
        self.rounds += 1
