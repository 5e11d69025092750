"""Authorisation of requests. It finds the sender, applies the request's rule and the sender's
policies, and writes the audit log.

Every router of a server calls ``authorise`` (``remoting/router.py``). A client cannot learn if a
user exists: every wrong signature gets the same answer after the same time. Allowed requests are
cached until users or policies change.

Source: apache/rocketmq ``DefaultAuthenticationHandler``, ``UserAuthorizationHandler``,
``AclAuthorizationHandler``. Files are unknown here.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec

from turbopump.auth.accounts import SUBJECT, Accounts, User
from turbopump.auth.policies import Action, Decision, Entry, Policies, ResourceType
from turbopump.auth.rules import RULES, Need, Rule, Who, consumed, need
from turbopump.auth.signatures import ACCESS_KEY, signed_in_fields, signed_in_header
from turbopump.errors import ProtocolError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.frame import JSON
from turbopump.protocol.request import Request
from turbopump.remoting.response import Refusal, refusal
from turbopump.remoting.router import UNREAD, RequestContext
from turbopump.remoting.turns import Steps, finished
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

audit = logging.getLogger("turbopump.audit")
"""Audit log with the user, the request, the address, and the deciding rule. Denials and changes are
always logged, the rest at level DEBUG."""
_DENIED: Final = "denied user=%s code=%d asked=%s peer=%s rule=%s"
_ALLOWED: Final = "allowed user=%s code=%d asked=%s peer=%s rule=%s"
_denied = RepeatedLine(audit, logging.WARNING, _DENIED)
_denied_metrics = RepeatedLine(
    audit, logging.WARNING, "denied user=%s page=/metrics asked=%s peer=%s rule=%s"
)

KNOWN_MAX: Final = 10_000
"""Maximum number of allowed requests in the cache."""
NAME_SIZE_MAX: Final = 300
"""Maximum length of a topic or group in a cached request, in characters."""
LARGE_BODY: Final = 8 * 1024
"""Size of a body in bytes above which its resources are checked one by one, with other work between
them."""
NOTED_MAX: Final = 20
"""Maximum number of needed resources that a log line names."""
HEADER_SIZE: Final = 64 * 1024
"""Maximum size in bytes of a JSON header for the fast check. A larger or unusual header is decoded
by the slower, more tolerant code."""
_CHANGES: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})
KEYS: Final = {
    int(code): rule.key for code, rule in RULES.items() if rule.key is not None and not rule.message
}
"""Functions that return the header fields which decide about a frequent request, by its code. None
of these requests changes anything."""
CHANGING: Final = frozenset(
    code
    for code, rule in RULES.items()
    if rule.who is Who.SUPER or any(_CHANGES.issuperset(ask.actions) for ask in rule.asks)
)
"""Codes of requests that change something. They are logged even if they are allowed."""
NOT_KNOWN: Final = refusal(
    ResponseCode.NO_PERMISSION,
    "access denied: this server accepts only requests signed by its users; check the "
    "credentials (accessKey, secretKey)",
)
"""Answer to an unknown or disabled user, and to a wrong signature."""
NOBODY: Final = User("-", secrets.token_hex())
"""User of an unsigned request that the whitelist allows. It also stands for a user who does not
exist."""
_NO_RULE: Final = Rule(who=Who.SUPER)
_ALWAYS: Final = (Who.SUPER, Who.SECRETS)
"""Kinds of users that are always required. No setting opens these requests to others."""
_NO_POLICIES: Final = Policies()


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Settings of access control.

    - ``authorization``: True if policies are checked, and not only signatures.
    - ``inner_user``: name of the brokers' own user, or None.
    - ``unsigned``: codes of requests that need no signature (authenticationWhitelist).
    - ``unasked``: codes of requests that need no policy (authorizationWhitelist).
    """

    authorization: bool = True
    inner_user: str | None = None
    unsigned: frozenset[int] = frozenset()
    unasked: frozenset[int] = frozenset()


class AccessControl:
    """Access control of one server. It decides about each arriving request.

    ``clusters`` returns the names of the server's current clusters.
    """

    def __init__(
        self, accounts: Accounts, settings: AccessSettings, clusters: Callable[[], Collection[str]]
    ) -> None:
        self._accounts = accounts
        self._settings = settings
        self._clusters = clusters
        self._known: dict[Hashable, tuple[str, str]] = {}
        self.on_permissions_reduced: Callable[[], None] = lambda: None
        """Function that is called when a user may have lost permissions. Waiting requests that were
        allowed must then be answered."""

    @property
    def accounts(self) -> Accounts:
        """Users and policies of the server. New ones apply from the next request on."""
        return self._accounts

    @accounts.setter
    def accounts(self, accounts: Accounts) -> None:
        before = self._accounts
        self._accounts = accounts
        self._known.clear()
        if before.allowed_more_than(accounts):
            self.on_permissions_reduced()

    def __call__(
        self, request: Request[Any], context: RequestContext
    ) -> Refusal | Steps[Refusal | None] | None:
        """Authorise a request. Return None if it is allowed, else the refusal.

        A large body that names resources is checked in steps.
        """
        code = context.code
        peer = context.peer
        user = self._find_sender(context)
        if user is None:
            if code not in self._settings.unsigned:
                claimed = _fields(context).get(ACCESS_KEY, "-")
                self._note_denied(claimed[:80], code, peer, "-", "not signed rightly")
                return NOT_KNOWN
            user = NOBODY
        peer.user = user.name
        if request is UNREAD:
            return None
        key = KEYS.get(code)
        known_by = None
        if key is not None and user is not NOBODY:
            # With the address: entries of a policy may be limited to addresses.
            known_by = user.name, code, peer.peer_ip, key(request)
            known = self._known.get(known_by)
            if known is not None:
                if audit.isEnabledFor(logging.DEBUG):
                    self._note_allowed(user, context, *known)
                return None
        settings = self._settings
        rule = RULES.get(code, _NO_RULE).for_request(request)
        open_to_users = not settings.authorization or code in settings.unasked
        if user.is_super or (open_to_users and rule.who not in _ALWAYS):
            why = "Super" if user.is_super else "no policy is asked for"
            asked = "-"
            if code in CHANGING:
                asked = self._describe_change(request, rule, context)
            self._note_allowed(user, context, asked, why)
            return None
        if rule.message:
            context.judge_topic = _TopicsOfMessages(self, user, code, peer, rule.message)
        judging = self._judge_by_rule(user, rule, request, context, known_by)
        if rule.from_body and len(context.body) > LARGE_BODY:
            return judging
        return finished(judging)

    def may_publish(self, peer: Wire, topic: str) -> bool:
        """Return True if a connection's user may publish to ``topic`` now. The user is that of the
        connection's last request."""
        user = self._accounts.users.get(peer.user or "")
        if user is None or not user.enabled:
            return not self._settings.authorization and peer.user == NOBODY.name
        if user.is_super or not self._settings.authorization:
            return True
        wanted = need(ResourceType.TOPIC, topic, (Action.PUB,))
        return self._find_allowing_entry(user, peer, wanted) is not None

    def may_read_metrics(self, name: str, password: str, host: str) -> bool:
        """Return True if a user with this name and password may read the metrics of the server.

        The user is a Super user, or may get one of the server's clusters. ``host`` is that of the
        peer. A refusal is a line in the audit log.
        """
        # For an unknown user a password is compared too: the time does not show who exists.
        user = self._accounts.users.get(name, NOBODY)
        right = secrets.compare_digest(user.password.encode(), password.encode())
        if not right or user is NOBODY or not user.enabled:
            claimed = name[:80] or "-"
            why = "no enabled user with this password"
            _denied_metrics(claimed, "-", host, why, kind=(claimed, host))
            return False
        if user.is_super or not self._settings.authorization:
            return True
        mine = self._accounts.policies.get(name, _NO_POLICIES)
        needs = [
            need(ResourceType.CLUSTER, cluster, (Action.GET,))
            for cluster in self._clusters() or ("",)
        ]
        for wanted in needs:
            found = mine.find_entry(wanted.resource, wanted.actions, host)
            if found is not None and found[1].decision is Decision.ALLOW:
                return True
        _denied_metrics(name, str(needs[0]), host, "no policy", kind=(name, host))
        return False

    # --- the sender

    def _find_sender(self, context: RequestContext) -> User | None:
        """Return the user who signed a request, or None. A disabled user counts as no user."""
        frame = context.frame
        body = context.body
        version = context.version
        try:
            if frame.serialize_type != JSON or len(frame.header) > HEADER_SIZE:
                found = signed_in_fields(_fields(context), body, version)
            else:
                found = signed_in_header(frame.header, body, version)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a number for a text
            found = signed_in_fields(_fields(context), body, version)
        if found is None:
            return None
        name, signature, content = found
        # The signature of an unknown user is checked too, with a secret that nobody has. Otherwise
        # a faster answer would show which users exist.
        user = self._accounts.users.get(name, NOBODY)
        signed = user.key.has_signed(content, signature)
        if signed and user.enabled and user is not NOBODY:
            return user
        return None

    # --- the decision

    def _judge_by_rule(
        self,
        user: User,
        rule: Rule,
        request: Request[Any],
        context: RequestContext,
        key: Hashable = None,
    ) -> Steps[Refusal | None]:
        """Apply the rule of a request to its sender, who is not a Super user.

        ``key`` is the key under which a permission is cached, or None.
        """
        code = context.code
        peer = context.peer
        if rule.who is not Who.POLICY or user is NOBODY:
            is_inner = user is not NOBODY and user.name == self._settings.inner_user
            if is_inner and rule.who in (Who.BROKERS, Who.SECRETS):
                self._note_allowed(user, context, "-", rule.who.value)
                return None
            self._note_denied(user.name, code, peer, "-", f"only for {rule.text}")
            remark = f"User:{user.name} may not send request {code}: only for {rule.text}"
            return refusal(ResponseCode.NO_PERMISSION, remark)
        asked: list[str] = []
        why: list[str] = []
        count = 0
        for wanted in rule.needs(request, context.body, self._clusters() or ("",)):
            entry = self._find_allowing_entry(user, peer, wanted)
            if entry is None:
                return self.judge_need(user, code, peer, wanted)
            count += 1
            if count <= NOTED_MAX:
                asked.append(str(wanted))
                why.append(str(entry))
            yield
        if count > NOTED_MAX:
            asked.append(f"{count - NOTED_MAX} more")
        if rule.somewhere and not count and not self._may_somewhere(user, peer, *rule.somewhere):
            what = f"{' or '.join(rule.somewhere)} on some topic"
            self._note_denied(user.name, code, peer, what, "no policy")
            remark = f"User:{user.name} may not send request {code}: it needs {what}"
            return refusal(ResponseCode.NO_PERMISSION, remark)
        if rule.produces:
            context.may_produce = self._may_somewhere(user, peer, Action.PUB)
        known = "; ".join(asked) or "-", "; ".join(why) or "any account"
        if key is not None and all(len(text) <= NAME_SIZE_MAX for text in asked):
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = known
        self._note_allowed(user, context, *known)
        return None

    def _may_somewhere(self, user: User, peer: Wire, *actions: Action) -> bool:
        mine = self._accounts.policies.get(user.name, _NO_POLICIES)
        return any(
            mine.allow_somewhere(ResourceType.TOPIC, action, peer.peer_ip) for action in actions
        )

    def _find_allowing_entry(self, user: User, peer: Wire, wanted: Need) -> Entry | None:
        found = self._find_entry(user, peer, wanted)
        if found is None or found.decision is not Decision.ALLOW:
            return None
        return found

    def judge_need(self, user: User, code: int, peer: Wire, wanted: Need) -> Refusal | None:
        """Check one permission that a request needs. Return a refusal unless the user's policies
        give this permission."""
        entry = self._find_entry(user, peer, wanted)
        if entry is not None and entry.decision is Decision.ALLOW:
            return None
        self._note_denied(user.name, code, peer, str(wanted), str(entry or "no policy"))
        why = "the decision is deny"
        if entry is None:
            why = "no policy allows it"
        return refusal(
            ResponseCode.NO_PERMISSION,
            f"User:{user.name} has no permission to access {wanted.resource} from {peer.peer_ip}, "
            f"{why}: request {code} needs {' or '.join(wanted.actions)}",
        )

    def _find_entry(self, user: User, peer: Wire, wanted: Need) -> Entry | None:
        policies = self._accounts.policies.get(user.name, _NO_POLICIES)
        found = policies.find_entry(wanted.resource, wanted.actions, peer.peer_ip)
        if found is None:
            return None
        _, entry = found
        return entry

    # --- the log

    def _note_allowed(self, user: User, context: RequestContext, asked: str, why: str) -> None:
        level = logging.DEBUG
        if context.code in CHANGING:
            level = logging.INFO
        if audit.isEnabledFor(level):
            audit.log(level, _ALLOWED, user.name, context.code, asked, context.peer.peer, why)

    def _describe_change(self, request: Request[Any], rule: Rule, context: RequestContext) -> str:
        """Describe the change by an allowed request, for the audit log."""
        subject = getattr(request, "subject", None) or getattr(request, "username", None)
        if subject:
            return SUBJECT + str(subject).removeprefix(SUBJECT)[:NAME_SIZE_MAX]
        if len(context.body) > LARGE_BODY:
            return "-"
        try:
            needs = islice(rule.needs(request, context.body, self._clusters() or ("",)), NOTED_MAX)
            return "; ".join(map(str, needs)) or "-"
        except ProtocolError:  # the handler reports it
            return "-"

    def _note_denied(self, name: str, code: int, peer: Wire, asked: str, why: str) -> None:
        _denied(name, code, asked, peer.peer, why, kind=(name, code, asked, peer.peer_ip))


def _fields(context: RequestContext) -> Mapping[str, str]:
    """Return the header fields of a request. There are none if the header cannot be decoded."""
    try:
        return context.command.ext or {}
    except ProtocolError:
        return {}


@dataclass(frozen=True, slots=True)
class _TopicsOfMessages:
    """Check of a message's topic, for a request that names the message only by its position.

    The object must not refer to the request's context, which refers back to it: the garbage
    collector would not see that cycle.
    """

    access: AccessControl
    user: User
    code: int
    peer: Wire
    actions: tuple[Action, ...]

    def __call__(self, topic: str, group: str | None) -> Refusal | None:
        names: Iterable[str] = (topic,)
        if group is not None:
            names = consumed(topic, group)
        for name in names:
            wanted = need(ResourceType.TOPIC, name, self.actions)
            refused = self.access.judge_need(self.user, self.code, self.peer, wanted)
            if refused is not None:
                return refused
        return None
