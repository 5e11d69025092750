"""Users and their policies: 3001–3005 AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER,
AUTH_GET_USER, AUTH_LIST_USER; 3006–3010 the same for policies (ACL).

An answer about a missing user or policy has no body. The answers to both lists are JSON arrays.

Ours: with a ``nonce`` the list of users is the whole ``accounts.json``, passwords and policies
included, sealed with the requester's secret (``auth/sealing.py``); a header field of the answer
marks it. Apache's servers ignore the nonce and answer with their list, without passwords.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request

SWITCHED_OFF: Final = (
    "access control is off on this server: it has no users; authenticationEnabled=true in its "
    "configuration switches it on"
)
"""The remark of a server's refusal."""
SEALED: Final = "sealed"
"""Field of an answer: its body is sealed."""


class UserInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A user. ``user_type``: Super or Normal; ``user_status``: enable or disable. None changes
    nothing. Servers never show a password."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"<user {self.username!r} {self.user_type} {self.user_status}>"


class PolicyEntryInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Actions allowed or denied on one resource, such as `Topic:orders*`. ``source_ips``: addresses
    and CIDR ranges; None: all."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A policy, Custom or Default."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The policies of a subject, `User:NAME`."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


class CreateUser(Request[None], kw_only=True):
    """Make a user who does not exist."""

    code = RequestCode.AUTH_CREATE_USER
    body = UserInfo
    username: str | None = None


class UpdateUser(Request[None], kw_only=True):
    """Change what the body says of a user."""

    code = RequestCode.AUTH_UPDATE_USER
    body = UserInfo
    username: str | None = None


class DeleteUser(Request[None], kw_only=True):
    """Delete a user, and the policies for them."""

    code = RequestCode.AUTH_DELETE_USER
    username: str | None = None


class GetUser(Request[None], kw_only=True):
    """One user, a ``UserInfo``."""

    code = RequestCode.AUTH_GET_USER
    username: str | None = None


class ListUsers(Request[None], kw_only=True):
    """The users whose name has ``filter`` in it. ``nonce``, ours: all accounts, sealed;
    ``known_version``, of a slave to its master: no content if they are still these."""

    code = RequestCode.AUTH_LIST_USER
    filter: str | None = None
    nonce: str | None = None
    known_version: str | None = None


class CreateAcl(Request[None], kw_only=True):
    """Add policies; an entry for a resource that has one replaces it."""

    code = RequestCode.AUTH_CREATE_ACL
    body = AclInfo
    subject: str | None = None


class UpdateAcl(Request[None], kw_only=True):
    """The same."""

    code = RequestCode.AUTH_UPDATE_ACL
    body = AclInfo
    subject: str | None = None


class DeleteAcl(Request[None], kw_only=True):
    """Delete the entry for ``resource``, or all policies of the subject if there is none."""

    code = RequestCode.AUTH_DELETE_ACL
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class GetAcl(Request[None], kw_only=True):
    """The policies of one subject, an ``AclInfo``."""

    code = RequestCode.AUTH_GET_ACL
    subject: str | None = None


class ListAcls(Request[None], kw_only=True):
    """The policies of the subjects, and for the resources, that have these texts in them."""

    code = RequestCode.AUTH_LIST_ACL
    subject_filter: str | None = None
    resource_filter: str | None = None
