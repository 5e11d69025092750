"""Requests about the configuration of a running broker.

They are 25 UPDATE_BROKER_CONFIG and 26 GET_BROKER_CONFIG.
"""

from __future__ import annotations

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class UpdateBrokerConfig(Request[None], kw_only=True):
    """Change settings of a running broker. The body is the text of a properties file."""

    code = RequestCode.UPDATE_BROKER_CONFIG


class GetBrokerConfigReply(Reply, kw_only=True):
    """Reply to GET_BROKER_CONFIG (26). The settings are in the body.

    ``version`` is a ``DataVersion`` in JSON, which counts the changes since the broker started.
    """

    version: str | None = None


class GetBrokerConfig(Request[GetBrokerConfigReply], kw_only=True):
    """Ask for all settings of a broker. The body of the answer is the text of a properties file."""

    code = RequestCode.GET_BROKER_CONFIG
