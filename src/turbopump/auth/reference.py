"""Generator of `docs/reference/access-rules.md`: `python -m turbopump.auth.reference >
docs/reference/access-rules.md`.

The page contains only text from the rules and the preface below.
"""

from __future__ import annotations

from turbopump.auth.rules import RULES
from turbopump.protocol.codes import RequestCode

_PREFACE = """# Who may send which request

Written by `python -m turbopump.auth.reference > docs/reference/access-rules.md`; a test checks that
it is up to date, and that every request code that a name server or a broker serves has a rule.

With `authorizationEnabled` a user who is not a Super user may send a request if policies allow them
what this table says: one of the actions on each of the resources. Nothing is open to whoever has no
account. The last column says what Apache's 5.3.3 asks for where that is different; an empty cell
means: the same. Apache's name server asks for nothing at all.

- The retry topic of a group is the group's: `Sub` on the group stands for `Pub` on it, too. The
  topic from which a group pops its own messages again counts as the topic.
- *Cluster* is the cluster of the broker; of a name server, each cluster that has a broker.
- A request that names a message by its place alone (33, 36, 37, 309, 323) is also asked about the
  topic of the message that is found there.
- The topics that are a broker's own (`SCHEDULE_TOPIC_XXXX`, `RMQ_SYS_TRANS_HALF_TOPIC`, `rmq_sys_…`
  and so on) hold messages that are meant for other topics: a policy allows them by their full name
  only, not as `Topic:*`. Apache's 5.3.3 knows no difference.
- The topics `TBW102` and `…_REPLY_TOPIC` of a cluster are routed for every user: who may make a
  topic or answer a request needs to find them.
- A code that is not in the table is answered with code 3, and to users alone.

| code | request | needs | Apache's 5.3.3 |
|---|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    rows = [
        f"| {code} | {RequestCode(code).name} | {_cell(rule.text)} | {_cell(rule.apache)} |\n"
        for code, rule in sorted(RULES.items())
    ]
    return _PREFACE + "".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
