"""The accounts of a 4.x server: what is taken over of its plain_acl.yml, and what is refused."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from turbopump.auth.plain_acl import decode, read, read_directory
from turbopump.auth.policies import Action, Decision, Resource
from turbopump.errors import ConfigError

with_yaml = pytest.mark.skipif(
    find_spec("yaml") is None, reason="needs the extra turbopump[acl-import]"
)

AS_4X_SHIPS_IT = """\
# a comment

globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group is that of a retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 'pass # word'
    whiteRemoteAddress: 192.168.1.*
    # may do everything
    admin: true
"""


@with_yaml
def test_what_4x_ships_is_taken_over_and_what_has_no_place_is_named() -> None:
    found = decode(AS_4X_SHIPS_IT)
    users = found.accounts.users
    assert [(user.name, user.password, user.is_super) for user in users.values()] == [
        ("RocketMQ", "12345678", False),
        ("rocketmq2", "pass # word", True),
    ]
    assert found.left_out == (
        "globalWhiteRemoteAddresses: every request needs a signature",
        "whiteRemoteAddress of rocketmq2: every request needs a signature",
    )


def may(policies: Any, resource: str, action: Action) -> bool:
    decided = policies.find_entry(Resource.parse(resource), (action,), "10.0.0.1")
    return decided is not None and decided[1].decision is Decision.ALLOW


@with_yaml
@pytest.mark.parametrize(
    ("resource", "publishes", "consumes"),
    [
        ("Topic:topicA", False, False),
        ("Topic:topicB", True, True),
        ("Topic:topicC", False, True),
        ("Topic:other", False, False),
        ("Group:groupA", False, False),
        ("Group:groupB", True, True),
        ("Group:other", False, True),
    ],
)
def test_its_permissions_decide_as_in_4x(resource: str, publishes: bool, consumes: bool) -> None:
    policies = decode(AS_4X_SHIPS_IT).accounts.policies["RocketMQ"]

    assert (may(policies, resource, Action.PUB), may(policies, resource, Action.SUB)) == (
        publishes,
        consumes,
    )


@with_yaml
@pytest.mark.parametrize(
    ("form", "secret"),
    [
        ("accounts:\n- accessKey: a\n  secretKey: s3\n", "s3"),
        ("accounts:\n-   accessKey: a\n    secretKey: s#3 # x\n", "s#3"),
        ('---\naccounts:\n  - secretKey: "s 3"\n    accessKey: "a"\n', "s 3"),
        ("accounts:\n- accessKey: a\n  secretKey: s3\n  topicPerms: [t=PUB,\n    u=SUB]\n", "s3"),
        ("accounts:\n- {accessKey: a, secretKey: 0123, topicPerms: ~}\n", "0123"),
        ("accounts:\n- accessKey: a\n  secretKey: s2\n  secretKey: s3\n", "s3"),
        ("accounts:\n- accessKey: a\n  secretKey: |-\n    s3\n", "s3"),
    ],
)
def test_forms_of_yaml_that_such_files_have(form: str, secret: str) -> None:
    assert decode(form).accounts.users["a"].password == secret


ACCOUNT = "accounts:\n- accessKey: a\n  secretKey: s3same\n"


@with_yaml
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n", "expected a line `accounts:`"),
        ("accounts: a\n", "accounts is not a list"),
        ("accounts:\n- a\n", "account 1 is not a mapping"),
        ("accounts:\n- accessKey: a\n", "account 1 needs an accessKey and a secretKey"),
        (ACCOUNT + "  topicPerms:\n  - t\n", "topicPerms of a: 't' is not NAME=PERMISSION"),
        (
            ACCOUNT + "  topicPerms:\n  - t=READ\n",
            "'READ' is not a permission; use one of DENY, PUB",
        ),
        (ACCOUNT + "  defaultGroupPerm: all\n", "defaultGroupPerm of a: 'all' is not a permission"),
        (ACCOUNT + "  defaultGroupPerm: [SUB]\n", "defaultGroupPerm of a is not text"),
        (ACCOUNT + "  topicPerms:\n  - t: PUB\n", "topicPerms of a: one of them is not NAME="),
        ("accounts:\n- accessKey: a\n  secretKey: null\n", "account 1 needs an accessKey"),
        (ACCOUNT + "\tadmin: true\n", "line 4 is not YAML"),
        (ACCOUNT + "    admin: true\n", "line 4 is not YAML"),
        ("accounts:\n- accessKey: a\n  secretKey: 's3same\n", "line 4 is not YAML"),
        ("accounts:\n- accessKey: *s3same\n", "line 2 is not YAML"),
        (ACCOUNT + "  topicPerms: [t=PUB\n", "line 5 is not YAML"),
        (ACCOUNT + "  admin: \0\n", "it is not YAML"),
        ("accounts: " + "[" * 3000 + "]" * 3000, "it is not YAML"),
        ("", "expected a line `accounts:`"),
    ],
)
def test_whatever_is_not_understood_is_refused_and_no_secret_is_told(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decode(text)
    assert says in str(raised.value)
    assert "s3same" not in str(raised.value)


@with_yaml
def test_a_directory_of_4x_is_read_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    for path, secret in (
        ("acl/one.yml", "first"),
        ("acl/tools.yml", "of mqadmin, no account"),
        ("plain_acl.yml", "second"),
    ):
        text = f"accounts:\n- accessKey: a\n  secretKey: {secret}\n"
        (tmp_path / path).write_text(text)
    assert read_directory(tmp_path).users["a"].password == "first"
    (tmp_path / "plain_acl.yml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"plain_acl\.yml: "):
        read(tmp_path / "plain_acl.yml")
    assert read_directory(tmp_path / "none").users == {}


def test_without_pyyaml_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "plain_acl.yml").write_text(ACCOUNT)
    with pytest.raises(
        ConfigError, match=r"plain_acl\.yml: .*pip install 'turbopump\[acl-import\]'"
    ):
        read(tmp_path / "plain_acl.yml")
    assert read_directory(tmp_path / "none").users == {}
