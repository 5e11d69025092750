"""Access control of one server: users, policies and their file. It answers requests that read or
change them (3001–3010).

- The file ``accounts.json`` has mode 0600 and is replaced in one step.
- The server checks the file once a second and applies edits by others. If it cannot read
  the file, the last good content stays valid.
- If other users can read the file, the server logs a warning, and its answers about users
  carry a remark.
- A change by request is on the disk before the answer. The change is made to the file's
  present content, under a lock, so that servers and commands can share a file.
- A slave copies its master's accounts (``broker/slave_accounts.py``).

Source: apache/rocketmq ``AdminBrokerProcessor.createUser`` and its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from turbopump.auth import plain_acl
from turbopump.auth.access_control import AccessControl, AccessSettings
from turbopump.auth.accounts import SUBJECT, SUPER, Accounts
from turbopump.auth.sealing import NONCE_SIZE, seal, version_of
from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.config.access import AccessConfig
from turbopump.disk.disk import Disk, Files
from turbopump.errors import ConfigError, StoreLockedError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests import access as requests
from turbopump.protocol.requests.access import SEALED, AclInfo, UserInfo
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_read = RepeatedLine(log, logging.ERROR, "users and policies stay as they are file=%s cause=%s")

FILE_NAME: Final = "accounts.json"
LOOK_INTERVAL_S: Final = 1.0
"""Seconds between two checks of the file."""
OTHERS: Final = 0o077
"""Mode bits of a file for its group and for other users."""

Change = Callable[[Accounts], Accounts]


class ServerAccess:
    """Access control of one server. It owns the accounts file, and handles requests about users and
    policies.

    The routers of the server use ``control`` as their ``authorise``.

    - ``directory``: directory of the accounts file.
    - ``disk``: disk with the file. None keeps users and policies in memory only.
    - ``clusters``: function that returns the names of the server's current clusters.
    """

    def __init__(
        self,
        config: AccessConfig,
        directory: Path,
        disk: Disk | None,
        clusters: Callable[[], Collection[str]],
    ) -> None:
        inner = config.inner_user
        self.control = AccessControl(
            Accounts(),
            AccessSettings(
                authorization=config.authorization_enabled,
                inner_user=None if inner is None else inner[0],
                unsigned=config.unsigned_codes,
                unasked=config.unasked_codes,
            ),
            clusters,
        )
        self.copies_master = False
        """True if the server copies its master's accounts. A change that the copy made before its
        request arrived is then no error, and no slave copies from this server."""
        self.on_change: Callable[[Accounts, Accounts], None] = lambda _old, _new: None
        """Function that is called with the old and the new accounts after each change."""
        self._config = config
        self._disk = disk
        self._path = directory / FILE_NAME
        self._text: bytes | None = None
        self._open_to_others: str | None = None
        """Last warning about the mode of the file."""
        self._looking = False
        self._changing = asyncio.Lock()

    def open(self) -> None:
        """Read the accounts file. Create the users listed in the configuration.

        Raises ConfigError if the file is invalid, and OSError if it cannot be read or written.
        """
        changed = self._changed_file(self._with_configured_users)
        self._apply_accounts(*changed)
        if self._disk is not None:
            self._judge_mode(open_to_others(self._disk, self._path))
        accounts = self.control.accounts
        log.info(
            "access control is on users=%d authorization=%s file=%s",
            len(accounts.users),
            self._config.authorization_enabled,
            self._path if self._disk is not None else "-",
        )
        if not any(user.is_super and user.enabled for user in accounts.users.values()):
            log.warning(
                "no enabled Super user is there: nobody can make users by request; set "
                "initAuthenticationUser, or run turbopump auth user create --file file=%s",
                self._path,
            )

    def _with_configured_users(self, accounts: Accounts) -> Accounts:
        config = self._config
        for given in (config.first_user, config.inner_user):
            if given is not None and given[0] not in accounts.users:
                user = UserInfo(username=given[0], password=given[1], user_type=SUPER)
                accounts = accounts.with_new_user(user)
        inner = config.inner_user
        if inner is not None and accounts.users[inner[0]].password != inner[1]:
            log.warning(
                "innerClientAuthenticationCredentials has another secret than its user: "
                "servers that share the file will not know this one user=%s file=%s",
                inner[0],
                self._path,
            )
        if config.migrate_auth_from_v1_enabled:
            found = plain_acl.read_directory(plain_acl.configuration_directory())
            accounts = accounts.with_more(found)
        return accounts

    # --- the file

    def check_file(self) -> None:
        """Read the accounts file in the background, and apply changes by other processes."""
        # `change` may write the file while this check reads it in another thread. Its own result
        # then counts: the content read here may be older, and would undo the change in memory.
        disk = self._disk
        if disk is None or self._looking or self._changing.locked():
            return
        found: list[tuple[bytes, Accounts]] = []
        faults: list[ConfigError] = []
        modes: list[str | None] = []

        def read() -> None:
            modes.append(open_to_others(disk, self._path))
            text = disk.read_file(self._path)
            try:
                if text is None:
                    raise ConfigError("it is gone")
                if text != self._text:
                    found.append((text, Accounts.decode(text)))
            except ConfigError as error:
                faults.append(error)

        def done(error: OSError | None) -> None:
            self._looking = False
            for mode in modes:
                self._judge_mode(mode)
            if error is not None or faults:
                cause = error or faults[0]
                _not_read(self._path, cause, kind=str(cause))
            elif found and not self._changing.locked():
                self._apply_accounts(*found[0])
                log.warning("users and policies reloaded file=%s", self._path)

        self._looking = True
        disk.start(read, done)

    def _judge_mode(self, amiss: str | None) -> None:
        if amiss is not None and amiss != self._open_to_others:
            log.warning("%s", amiss)
        self._open_to_others = amiss

    async def change(self, change: Change, lost: Accounts | None = None) -> None:
        """Change users and policies, in the file and in memory.

        After an error nothing has changed. ``lost`` is used in place of a file that is missing or
        invalid. Raises ConfigError for an invalid change, and OSError if the file cannot be
        written.
        """
        async with self._changing:
            disk = self._disk
            if disk is None:
                self._apply_accounts(*self._changed_file(change))
                return
            outcome: list[tuple[bytes, Accounts]] = []
            faults: list[ConfigError] = []
            done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

            def write() -> None:
                try:
                    outcome.append(self._changed_file(change, lost))
                except ConfigError as error:
                    faults.append(error)

            disk.start(write, done.set_result)
            error = await asyncio.shield(done)  # a cancellation does not stop the write
            if error is not None:
                raise error
            if faults:
                raise faults[0]
            self._apply_accounts(*outcome[0])

    def change_now(self, change: Change, lost: Accounts | None = None) -> None:
        """Change users and policies as ``change`` does, but in this thread."""
        self._apply_accounts(*self._changed_file(change, lost))

    def _changed_file(self, change: Change, lost: Accounts | None = None) -> tuple[bytes, Accounts]:
        disk = self._disk
        if disk is None:
            accounts = change(self.control.accounts)
            return accounts.encode(), accounts
        return change_file(disk, self._path, change, lost)

    def _apply_accounts(self, text: bytes, accounts: Accounts) -> None:
        self._text = text
        old = self.control.accounts
        if accounts != old:
            self.control.accounts = accounts
            self.on_change(old, accounts)

    # --- requests

    def add_to(self, router: Router) -> None:
        """Register the handlers of requests about users and policies with ``router``."""
        router.add_with_body(requests.CreateUser, self.create_user)
        router.add_with_body(requests.UpdateUser, self.update_user)
        router.add(requests.DeleteUser, self.delete_user)
        router.add(requests.GetUser, self.get_user)
        router.add(requests.ListUsers, self.list_users)
        router.add_with_body(requests.CreateAcl, self.create_acl)
        router.add_with_body(requests.UpdateAcl, self.create_acl)
        router.add(requests.DeleteAcl, self.delete_acl)
        router.add(requests.GetAcl, self.get_acl)
        router.add(requests.ListAcls, self.list_acls)

    async def create_user(
        self, request: requests.CreateUser, body: UserInfo, _context: RequestContext
    ) -> Response[None]:
        body.username = request.username
        again = self.copies_master
        return await self._answer_change(lambda accounts: accounts.with_new_user(body, again=again))

    async def update_user(
        self, request: requests.UpdateUser, body: UserInfo, _context: RequestContext
    ) -> Response[None]:
        body.username = request.username
        return await self._answer_change(lambda accounts: accounts.with_changed_user(body))

    async def delete_user(
        self, request: requests.DeleteUser, _context: RequestContext
    ) -> Response[None]:
        name = request.username or ""
        return await self._answer_change(lambda accounts: accounts.without_user(name))

    def get_user(self, request: requests.GetUser, _context: RequestContext) -> Response[None]:
        user = self.control.accounts.users.get(request.username or "")
        return Response(body=b"" if user is None else fastjson.encode(user.info))

    def list_users(self, request: requests.ListUsers, context: RequestContext) -> Response[None]:
        if request.nonce is not None:
            if self.copies_master and request.known_version is not None:
                # A former master: its accounts may be older than the asker's.
                return refusal(ResponseCode.SYSTEM_ERROR, "this broker is a slave, too")
            return self._answer_sealed(request.nonce, request.known_version, context.peer.user)
        users = self.control.accounts.users
        found = [user.info for name, user in users.items() if (request.filter or "") in name]
        return Response(body=fastjson.encode(found), remark=self._open_to_others)

    def _answer_sealed(self, asked: str, known: str | None, user: str | None) -> Response[None]:
        """Return all accounts, encrypted. The requester is a user with access to the passwords.

        ``Who.SECRETS`` describes these users. The content is empty if the asker already has its
        version ``known``.
        """
        accounts = self.control.accounts
        asker = accounts.users.get(user or "")
        if asker is None:
            return refusal(ResponseCode.NO_PERMISSION, "passwords are for users of this server")
        content = accounts.encode()
        if known == version_of(content, asker.password):
            content = b""
        body = seal(content, asker.password, asked, secrets.token_bytes(NONCE_SIZE))
        return Response(body=body, ext={SEALED: "true"}, remark=self._open_to_others)

    async def create_acl(
        self,
        request: requests.CreateAcl | requests.UpdateAcl,
        body: AclInfo,
        _context: RequestContext,
    ) -> Response[None]:
        body.subject = request.subject or body.subject
        return await self._answer_change(lambda accounts: accounts.with_acl(body))

    async def delete_acl(
        self, request: requests.DeleteAcl, _context: RequestContext
    ) -> Response[None]:
        again = self.copies_master
        return await self._answer_change(
            lambda accounts: accounts.without_acl(
                request.subject, request.policy_type, request.resource, again=again
            )
        )

    def get_acl(self, request: requests.GetAcl, _context: RequestContext) -> Response[None]:
        accounts = self.control.accounts
        subject = request.subject or ""
        if subject.removeprefix(SUBJECT) not in accounts.users:
            return refusal(ResponseCode.NO_PERMISSION, f"there is no user {subject!r}")
        found = accounts.acl_infos(subject, exact=True)
        return Response(body=fastjson.encode(found[0]) if found else b"")

    def list_acls(self, request: requests.ListAcls, _context: RequestContext) -> Response[None]:
        found = self.control.accounts.acl_infos(
            request.subject_filter or "", request.resource_filter or ""
        )
        return Response(body=fastjson.encode(found))

    async def _answer_change(self, change: Change) -> Response[Any]:
        try:
            await self.change(change)
        except ConfigError as error:  # RocketMQ: the code of every fault of users and policies
            return refusal(ResponseCode.NO_PERMISSION, str(error))
        except OSError as error:
            log.error("users and policies cannot be written file=%s cause=%s", self._path, error)
            return refusal(
                ResponseCode.SYSTEM_ERROR,
                f"nothing has changed: the file of users cannot be written ({error.strerror})",
            )
        return Response()


class NoAccessControl:
    """Stand-in for the access control of a server without one.

    It answers requests about users with an explanation.
    """

    def add_to(self, router: Router) -> None:
        for code in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1):
            router.refuse(code, requests.SWITCHED_OFF)


def change_file(
    disk: Disk, path: Path, change: Change, lost: Accounts | None = None
) -> tuple[bytes, Accounts]:
    """Change users and policies in a file, under a lock. Return the file's new content.

    ``lost`` is used in place of a file that is missing or invalid. Raises ConfigError if the file
    or the change is invalid, and OSError if the file cannot be read or written.
    """
    disk.make_directory(path.parent)
    try:
        lock = disk.lock(path.with_name(path.name + ".lock"))
    except StoreLockedError:
        raise ConfigError(f"{path} is being changed by another process: try again") from None
    try:
        text = disk.read_file(path)
        accounts = lost or Accounts()
        try:
            if text is not None:
                accounts = Accounts.decode(text)
        except ConfigError as error:
            if lost is None:
                raise ConfigError(f"{path}: {error}") from None
            text = None
        changed = change(accounts)
        if text is None or changed != accounts:
            text = changed.encode()
            disk.replace_file(path, text, private=True)
        return text, changed
    finally:
        lock.release()


def open_to_others(disk: Files, path: Path) -> str | None:
    """Return a warning if other users can read or write an accounts file, or else None.

    The warning says how to correct that. A missing file gives None, and so does Windows, which has
    no such modes.
    """
    mode = disk.file_mode(path)
    if mode is None or not mode & OTHERS or sys.platform == "win32":
        return None
    return (
        f"{path} has mode {mode:04o}: other users can read or change its passwords; run "
        f"chmod 600 {shlex.quote(str(path))}"
    )


def inner_signer(config: AccessConfig) -> RequestSigner | None:
    """Return the signer of a server's own requests to other servers.

    Return None if the configuration has no credentials.
    """
    inner = config.inner_user
    return None if inner is None else RequestSigner(Credentials(*inner))
