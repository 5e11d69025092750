"""Handler that refuses the requests that only Apache's broker serves, or only a replica.

Such a request gets code 1 and a reason, before anything changes. The router answers a request that
Apache's broker does not know either with code 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from turbopump.protocol.codes import RequestCode
from turbopump.remoting.router import Router

_NO_ROCKSDB: Final = "not supported: this store keeps queues and settings in files, not in RocksDB"
_NO_CONTROLLER: Final = "this request is only for brokers with enableControllerMode=true"

UNSERVED: Final[Mapping[RequestCode, str]] = {
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _NO_ROCKSDB,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _NO_ROCKSDB,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "static topics are not served here: make an ordinary topic (updateTopic); nothing was made"
    ),
    RequestCode.GET_BROKER_EPOCH_CACHE: _NO_CONTROLLER,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _NO_CONTROLLER,
    RequestCode.POP_ROLLBACK: (
        "not supported: pops are recorded in the log, so RocksDB has no records to restore"
    ),
}
"""Remark of the refusal for each request code."""


class UnservedHandler:
    """Handler that refuses the requests that only Apache's broker serves."""

    def add_to(self, router: Router) -> None:
        for code, remark in UNSERVED.items():
            if code not in router.routes:
                router.refuse(code, remark)
