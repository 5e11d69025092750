"""How much of what may not be in memory groups may read before they are made to wait.

Its one rule is that of `broker_config.py`, of which this is a part: a field's key, default, unit and meaning stand here alone.
"""

from dataclasses import dataclass, field

from turbopump.config.sending import Sending
from turbopump.config.setting import LONG_MAX, setting

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdFlowSettings(Sending):
    """The part of a broker's configuration that says when groups that read a backlog are slowed down."""

    # Readers of a backlog.
    cold_data_flow_control_enable: bool = field(
        default=False,
        metadata=setting("coldDataFlowControlEnable", "slow down groups that read much of what may not be in memory"),
    )
    cg_cold_read_threshold: int = field(
        default=3 * _MIB,
        metadata=setting(
            "cgColdReadThreshold", "so much of it a group may read in 5 s, unless 2001 says otherwise", "bytes", high=LONG_MAX
        ),
    )
    global_cold_read_threshold: int = field(
        default=100 * _MIB,
        metadata=setting(
            "globalColdReadThreshold", "so much of it all groups together may read in 5 s", "bytes", high=LONG_MAX
        ),
    )
