"""The configuration of a running broker: 25 UPDATE_BROKER_CONFIG, 26 GET_BROKER_CONFIG."""

from __future__ import annotations

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class UpdateBrokerConfig(Request[None], kw_only=True):
    """Change settings; the body is the text of a properties file."""

    code = RequestCode.UPDATE_BROKER_CONFIG


class GetBrokerConfigReply(Reply, kw_only=True):
    """``version``: a ``DataVersion`` in JSON, which counts the changes since the start."""

    version: str | None = None


class GetBrokerConfig(Request[GetBrokerConfigReply], kw_only=True):
    """Every setting; answered with the text of a properties file."""

    code = RequestCode.GET_BROKER_CONFIG
