"""What a broker and a name server can be told, in Apache's keys."""

from turbopump.config.broker_config import BrokerConfig, FlushDiskType, load_broker_config
from turbopump.config.namesrv_config import NamesrvConfig, load_namesrv_config
from turbopump.config.setting import effective

__all__ = [
    "BrokerConfig",
    "FlushDiskType",
    "NamesrvConfig",
    "effective",
    "load_broker_config",
    "load_namesrv_config",
]
