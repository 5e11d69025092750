"""Servers that check who asks, Apache's and ours: their settings, and the users that these make at
the start."""

from __future__ import annotations

import json

from turbopump import Credentials

ADMIN = Credentials("rocketmq", "12345678")
"""A Super user, and whom the servers themselves sign as."""

ON: dict[str, str | int | bool] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps(
        {"username": ADMIN.access_key, "password": ADMIN.secret_key}
    ),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
    ),
}
"""Settings of a server of ours."""

_AUTH = "org.apache.rocketmq.auth"
APACHES_ON: dict[str, str | int | bool] = {
    **ON,
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}
"""The same of Apache's broker 5.3.3."""
