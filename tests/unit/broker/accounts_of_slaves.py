"""Brokers with accounts, and waiting until two of them have the same ones."""

import json
from typing import Any, Final

from tests.unit.broker.replicas import eventually

from turbopump.auth.accounts import Accounts
from turbopump.auth.signatures import Credentials
from turbopump.broker.broker import Broker

ADMIN, BROKER, BILLING = (
    Credentials(name, f"{name}'s secret") for name in ("admin", "broker", "billing")
)


def access_of(secret: str = BROKER.secret_key, **more: Any) -> dict[str, Any]:
    """Settings of a broker; its own account has this secret."""
    admin = {"username": ADMIN.access_key, "password": ADMIN.secret_key}
    inner = {"accessKey": BROKER.access_key, "secretKey": secret}
    return {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "init_authentication_user": json.dumps(admin),
        "inner_client_authentication_credentials": json.dumps(inner),
        **more,
    }


ON: Final = access_of()


def accounts_of(broker: Broker) -> Accounts:
    assert broker.access is not None
    return broker.access.control.accounts


async def until_same_accounts(one: Broker, other: Broker, seconds: float = 30.0) -> None:
    """Wait until two brokers have the same users and policies."""
    await eventually(lambda: accounts_of(one) == accounts_of(other), seconds=seconds)
