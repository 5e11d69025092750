"""How much of what may not be in memory groups may read before they are made to wait.

Its one rule is that of `broker_config.py`, of which this is a part: a field's key, default, unit
and meaning stand here alone.
"""

from dataclasses import dataclass, field

from turbopump.config.sending import Sending
from turbopump.config.setting import LONG_MAX, setting

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdFlowSettings(Sending):
    """The part of a broker's configuration that says when groups that read a backlog are slowed
    down."""

    # Readers of a backlog.
    cold_data_flow_control_enable: bool = field(
        default=False,
        metadata=setting(
            "coldDataFlowControlEnable",
            "slow down groups that read much of what may not be in memory",
        ),
    )
    cold_ctr_strategy_enable: bool = field(
        default=False,
        metadata=setting(
            "coldCtrStrategyEnable",
            "thresholds that nobody has set adapt to how much is read, every 5 s",
        ),
    )
    use_pid_cold_ctr_strategy: bool = field(
        default=True,
        metadata=setting(
            "usePIDColdCtrStrategy",
            "they do so by a controller that aims at 80 % of globalColdReadThreshold; false: up "
            "until that is exceeded, then down",
        ),
    )
    data_read_ahead_enable: bool = field(
        default=True,
        metadata=setting(
            "dataReadAheadEnable",
            "the system may read more of the log's files than what is asked for (2004)",
        ),
    )
    cg_cold_read_threshold: int = field(
        default=3 * _MIB,
        metadata=setting(
            "cgColdReadThreshold",
            "so much of it a group may read in 5 s, unless 2001 says otherwise",
            "bytes",
            high=LONG_MAX,
        ),
    )
    global_cold_read_threshold: int = field(
        default=100 * _MIB,
        metadata=setting(
            "globalColdReadThreshold",
            "so much of it all groups together may read in 5 s",
            "bytes",
            high=LONG_MAX,
        ),
    )
