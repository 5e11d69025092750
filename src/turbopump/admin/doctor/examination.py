"""Examination of a cluster, a topic or a group, as seen from this machine.

The doctor asks running servers and changes nothing. A server that does not answer is a finding too.
Each finding states one fact, and each problem has a fix.
"""

from __future__ import annotations

from turbopump.admin.cluster import Servers
from turbopump.admin.doctor.brokers import check_broker
from turbopump.admin.doctor.controllers import check_controllers
from turbopump.admin.doctor.diagnosis import LOG_OF_BROKER, Diagnosis, Examination
from turbopump.admin.doctor.groups import check_group
from turbopump.admin.doctor.name_servers import check_name_servers
from turbopump.admin.doctor.servers import compare_accounts
from turbopump.admin.doctor.topics import check_topic
from turbopump.clock import Clock
from turbopump.errors import ProtocolError, RemotingError


async def examine_cluster(
    servers: Servers, clock: Clock, topic: str | None = None, group: str | None = None
) -> list[Diagnosis]:
    """Check all servers of a cluster. Also check the topic and the group, if given. Return the
    findings."""
    examination = Examination(servers, clock)
    cluster = await check_name_servers(examination)
    if cluster is not None:
        for name, broker in sorted(cluster.broker_addr_table.items()):
            await check_broker(examination, name, broker)
        await check_controllers(examination)
        compare_accounts(examination)
        if topic is not None and examination.masters:
            found = examination.about(f"topic {topic}")
            try:
                await check_topic(examination, found, topic, cluster)
            except (RemotingError, ProtocolError) as error:
                found.wrong(f"it cannot be checked: {error}", LOG_OF_BROKER)
        if group is not None and examination.masters:
            found = examination.about(f"group {group}")
            try:
                await check_group(examination, found, group, topic)
            except (RemotingError, ProtocolError) as error:
                found.wrong(f"it cannot be checked: {error}", LOG_OF_BROKER)
    return [one for found in examination.findings for one in found.diagnoses]
