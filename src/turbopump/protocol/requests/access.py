"""Requests about users and their policies (ACL).

Codes 3001–3005 are AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER and
AUTH_LIST_USER; 3006–3010 are the same for policies. An answer about a missing user or policy has no
body. The answers to both lists are JSON arrays.

Ours: with a ``nonce`` the list of users is the whole ``accounts.json``, passwords and policies
included, sealed with the requester's secret (``auth/sealing.py``). A header field of the answer
marks a sealed body. Apache's servers ignore the nonce and answer with their list, without
passwords.
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
"""Remark of the refusal when access control is off."""
SEALED: Final = "sealed"
"""Header field of an answer whose body is sealed."""


class UserInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """User in requests about access control. Servers never show a password.

    ``user_type`` is Super or Normal, ``user_status`` enable or disable. In an update, a field that
    is None stays unchanged.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"<user {self.username!r} {self.user_type} {self.user_status}>"


class PolicyEntryInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Actions that a policy allows or denies on one resource, for example `Topic:orders*`.

    ``source_ips`` lists addresses and CIDR ranges. None means all addresses.
    """

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Policy of a user. The type of the policy is Custom or Default."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Policies of one subject, for example `User:alice`."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


class CreateUser(Request[None], kw_only=True):
    """Create a user. The broker refuses the request if the user exists."""

    code = RequestCode.AUTH_CREATE_USER
    body = UserInfo
    username: str | None = None


class UpdateUser(Request[None], kw_only=True):
    """Change the fields of a user that are set in the body."""

    code = RequestCode.AUTH_UPDATE_USER
    body = UserInfo
    username: str | None = None


class DeleteUser(Request[None], kw_only=True):
    """Delete a user and all policies of the user."""

    code = RequestCode.AUTH_DELETE_USER
    username: str | None = None


class GetUser(Request[None], kw_only=True):
    """Ask for one user. The body of the answer is a ``UserInfo``."""

    code = RequestCode.AUTH_GET_USER
    username: str | None = None


class ListUsers(Request[None], kw_only=True):
    """Ask for the users whose name contains ``filter``.

    Two fields are ours.

    - ``nonce``: asks for all accounts, sealed.
    - ``known_version``: version that a slave has. The master answers without content if its
      accounts still have this version.
    """

    code = RequestCode.AUTH_LIST_USER
    filter: str | None = None
    nonce: str | None = None
    known_version: str | None = None


class CreateAcl(Request[None], kw_only=True):
    """Add policies for a subject.

    An entry replaces an existing entry for the same resource.
    """

    code = RequestCode.AUTH_CREATE_ACL
    body = AclInfo
    subject: str | None = None


class UpdateAcl(Request[None], kw_only=True):
    """Add policies for a subject, exactly as ``CreateAcl`` does."""

    code = RequestCode.AUTH_UPDATE_ACL
    body = AclInfo
    subject: str | None = None


class DeleteAcl(Request[None], kw_only=True):
    """Delete the policy entry of a subject for one resource, or all policies of the subject.

    Without ``resource``, all policies are deleted.
    """

    code = RequestCode.AUTH_DELETE_ACL
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class GetAcl(Request[None], kw_only=True):
    """Ask for the policies of one subject. The body of the answer is an ``AclInfo``."""

    code = RequestCode.AUTH_GET_ACL
    subject: str | None = None


class ListAcls(Request[None], kw_only=True):
    """Ask for the policies whose subject and resource contain the given texts."""

    code = RequestCode.AUTH_LIST_ACL
    subject_filter: str | None = None
    resource_filter: str | None = None
