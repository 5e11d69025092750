"""The commands of Apache's mqadmin 5.3.3, those that change something each with its counterpart
that shows it, as they are tried on our servers and on Apache's.

Not tried: startMonitoring and clusterRT, which never end; brokerStatus, clusterList, statsAll,
sendMsgStatus and checkMsgSendRT, whose figures differ from run to run; queryMsgTraceById, which is
in test_consume_traces.py.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
import string
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.interop.accounts import ADMIN, APACHES_ON, ON
from tests.interop.apache import NEWEST
from tests.interop.mqadmin import Mqadmin, plain
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import patient_apache

from turbopump.protocol.codes import RequestCode


@dataclass(frozen=True, slots=True)
class Step:
    """A command as a shell would read it; ``$broker``, ``$namesrv`` and ``$files`` stand for the
    addresses of each side and a directory of its own. Only the printed lines that hold ``about``
    are compared."""

    command: str
    about: str = ""


def steps(text: str) -> tuple[Step, ...]:
    """One for each line: the command, and after `` | `` what its lines are about."""
    lines = (line.strip().partition(" | ") for line in text.splitlines() if line.strip())
    return tuple(Step(command, about) for command, _, about in lines)


FILES: Final = {
    "topics.json": [
        {"topicName": "L1", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6},
        {"topicName": "L2", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
    ],
    "groups.json": [{"groupName": "gl1", "retryMaxTimes": 3}, {"groupName": "gl2"}],
}
"""What commands read."""

CHANGES: Final = steps(
    """
    updateTopic -b $broker -t T -r 2 -w 2
    topicRoute -t T
    updateTopicPerm -b $broker -t T -p 4
    topicRoute -t T
    updateTopicPerm -c DefaultCluster -t T -p 6
    topicStatus -t T
    updateTopic -c DefaultCluster -t O -r 2 -w 2 -o true
    updateOrderConf -t O -m get
    updateTopic -b $broker -t O2 -r 2 -w 2 -o true -a +message.type=FIFO
    topicRoute -t O2
    updateTopicList -b $broker -f $files/topics.json
    topicRoute -t L1
    updateSubGroup -b $broker -g g -r 3 -q 2 -o true
    getConsumerConfig -g g
    updateSubGroup -b $broker -g gp -p '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":1000,"max":20000,"multiplier":2}}'
    getConsumerConfig -g gp
    updateSubGroupList -c DefaultCluster -f $files/groups.json
    getConsumerConfig -g gl1
    setConsumeMode -b $broker -t T -g g -m POP -q 1
    sendMessage -t T -p body0 -k key0 -c tagA -b broker-a -i 0
    sendMessage -t T -p body1 -k key1 -c tagB -b broker-a -i 0
    sendMessage -t T -p body2 -b broker-a -i 1
    consumeMessage -t T -b broker-a -i 0 -o 0 -c 2
    queryMsgByKey -t T -k key0
    queryMsgByOffset -t T -b broker-a -i 0 -o 0
    queryCq -t T -q 0 -i 0 -c 2
    queryCq -t T -q 1 -i 0 -c 2 -b $broker -g g
    queryCq -t nope -q 0 -i 0 -c 2 -b $broker
    printMsgByQueue -t T -a broker-a -i 0 -p true -d true
    topicStatus -t T
    resetOffsetByTime -g g -t T -s 0
    consumerProgress -g g -t T
    resetOffsetByTime -g g -t T -s now -b $broker -q 0 -o 1
    consumerProgress -g g -t T
    updateTopic -b $broker -t %RETRY%g -r 1 -w 1
    cloneGroupOffset -s g -d later -t T -o true
    updateTopic -b $broker -t %RETRY%later -r 1 -w 1
    updateTopic -b $broker -t %DLQ%later -r 1 -w 1
    consumerProgress -g later -t T
    skipAccumulatedMessage -g g -t T
    brokerConsumeStats -b $broker
    updateKvConfig -s NS -k k -v v
    deleteKvConfig -s NS -k k
    updateOrderConf -t T -m put -v broker-a:2
    updateOrderConf -t T -m get
    topicRoute -t T
    updateOrderConf -t T -m delete
    updateOrderConf -t T -m get
    wipeWritePerm -b broker-a
    topicRoute -t T
    addWritePerm -b broker-a
    topicRoute -t T
    updateNamesrvConfig -k enableAllTopicList -v false
    getNamesrvConfig | enableAllTopicList
    topicList
    updateNamesrvConfig -k enableAllTopicList -v true
    updateNamesrvConfig -k kvConfigPath -v /tmp/x
    updateBrokerConfig -b $broker -k fileReservedTime -v 48
    getBrokerConfig -b $broker | fileReservedTime
    updateBrokerConfig -b $broker -k brokerConfigPath -v /tmp/x
    updateColdDataFlowCtrGroupConfig -b $broker -g g -v 1000
    getColdDataFlowCtrInfo -b $broker
    removeColdDataFlowCtrGroupConfig -b $broker -g g
    getColdDataFlowCtrInfo -b $broker
    setCommitLogReadAheadMode -b $broker -m 1
    cleanExpiredCQ -b $broker
    cleanExpiredCQ -c DefaultCluster
    cleanUnusedTopic -b $broker
    topicStatus -t T
    deleteExpiredCommitLog -b $broker
    resetMasterFlushOffset -b $broker -o 10
    haStatus -b $broker
    exportMetadata -c DefaultCluster -f $files/exported
    exportMetrics -c DefaultCluster -f $files/exported
    exportConfigs -c DefaultCluster -f $files/exported
    deleteSubGroup -b $broker -g g -r true
    getConsumerConfig -g g
    deleteSubGroup -c DefaultCluster -g later -r true
    topicList | later
    deleteTopic -t T -c DefaultCluster
    topicRoute -t T
    topicClusterList -t L2
    """  # noqa: E501
)

OTHERS: Final = steps(
    """
    updateTopic -b $broker -t T -r 2 -w 2
    sendMessage -t T -p body0 -b broker-a -i 0
    updateStaticTopic -t T -qn 4 -b broker-a
    remappingStaticTopic -t T -c DefaultCluster
    topicRoute -t T
    allocateMQ -t T -i 127.0.0.1,127.0.0.2
    printMsg -t T -d true
    queryMsgById -i 7F0000010000000000000000000000FF -t T
    queryMsgByUniqueKey -i 7F0000010000000000000000000000FF -t T
    queryMsgByUniqueKey -i 7F0000010000000000000000000000FF -t T -g g -d c
    producer -b $broker
    producerConnection -g p -t T
    consumerConnection -g nobody
    consumerStatus -g nobody
    addBroker -c $broker -b /tmp/none
    removeBroker -c $broker -b DefaultCluster:broker-a:0
    electMaster -a $broker -b 0 -bn broker-a -c DefaultCluster
    cleanBrokerMetadata -a $broker -bn broker-a -c DefaultCluster
    updateControllerConfig -a $broker -k x -v y
    getControllerConfig -a $broker
    getControllerMetaData -a $broker
    getSyncStateSet -a $broker -b broker-a
    getBrokerEpoch -c DefaultCluster
    dumpCompactionLog -f $files/none
    exportMetadataInRocksDB -p $files/none -t topics
    rocksDBConfigToJson -b $broker -t topics
    createUser -b $broker -u u -p p -t Super
    createUser -c DefaultCluster -u u -p p
    updateUser -b $broker -u u -p q
    listUser -b $broker
    getUser -b $broker -u u
    deleteUser -b $broker -u u
    createAcl -b $broker -s User:u -r Topic:T -a Pub -d Allow
    updateAcl -b $broker -s User:u -r Topic:T -a Pub -d Allow
    listAcl -b $broker
    getAcl -b $broker -s User:u
    deleteAcl -b $broker -s User:u
    copyUser -f $broker -t $broker -u u
    copyAcl -f $broker -t $broker -s User:u
    """
)
"""Commands that show something, or that both brokers refuse as they are configured."""

ACCOUNTS: Final = steps(
    """
    listUser -b $broker
    createUser -b $broker -u ann -p anns-secret
    createUser -c DefaultCluster -u root -p roots-secret -t Super
    createUser -b $broker -u ann -p other
    getUser -b $broker -u ann
    getUser -c DefaultCluster -u root
    getUser -b $broker -u nobody
    updateUser -b $broker -u ann -p anns-other-secret
    updateUser -b $broker -u ann -s disable
    updateUser -c DefaultCluster -u root -t Normal
    updateUser -b $broker -u nobody -p x
    listUser -b $broker
    listUser -c DefaultCluster -f an
    createAcl -b $broker -s User:ann -r Topic:T,Group:g -a Pub,Sub -d Allow -i 192.168.0.0/24
    createAcl -b $broker -s User:nobody -r Topic:T -a Pub -d Allow
    createAcl -b $broker -s User:ann -r Nonsense:T -a Pub -d Allow
    createAcl -b $broker -s User:ann -r Topic:T -a Nonsense -d Allow
    createAcl -b $broker -s User:ann -r Topic:T -a Pub -d Maybe
    createAcl -b $broker -s User:ann -r Topic:T -a Pub -d Allow -i nowhere
    createAcl -c DefaultCluster -s User:root -r Topic:* -a Get,List -d Deny
    getAcl -b $broker -s User:ann
    getAcl -c DefaultCluster -s User:root
    getAcl -b $broker -s User:nobody
    updateAcl -b $broker -s User:ann -r Topic:T -a All -d Deny
    updateAcl -c DefaultCluster -s User:root -r Topic:new* -a Create -d Allow
    updateAcl -b $broker -s User:nobody -r Topic:T -a Pub -d Allow
    listAcl -b $broker
    listAcl -b $broker -s ann
    listAcl -c DefaultCluster -r Topic:T
    copyAcl -f $broker -t $broker -s User:ann
    deleteAcl -b $broker -s User:ann -r Topic:T
    getAcl -b $broker -s User:ann
    deleteAcl -c DefaultCluster -s User:root
    deleteAcl -b $broker -s User:nobody
    listAcl -b $broker
    deleteUser -b $broker -u ann
    deleteUser -c DefaultCluster -u root
    deleteUser -b $broker -u nobody
    listUser -b $broker
    getAcl -b $broker -s User:ann
    """
)
"""Users and policies, where servers check who asks."""

REFUSED: Final[Mapping[str, RequestCode]] = {
    "updateStaticTopic -t S -qn 2 -c DefaultCluster": RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
    "exportPopRecord -c DefaultCluster": RequestCode.POP_ROLLBACK,
    "exportPopRecord -b $broker": RequestCode.POP_ROLLBACK,
    "rocksDBConfigToJson -c DefaultCluster -t topics": RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    "checkRocksdbCqWriteProgress -c DefaultCluster -t T": (
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS
    ),
}
"""Commands that only Apache's broker serves, and the request that ours refuses."""


LATE: Final = re.compile(r"RemotingTimeoutException|wait response on the channel|^TIMEOUT$")
"""What mqadmin prints when an answer did not come in time."""


@contextmanager
def both(directory: Path, *, accounts: bool = False) -> Iterator[Sides]:
    """Our servers and Apache's, each fresh, and one mqadmin for both. ``accounts``: they check who
    asks, and mqadmin signs."""
    with ExitStack() as stack:
        if accounts:
            keys = directory / "mqadmin" / "conf" / "tools.yml"
            keys.parent.mkdir(parents=True)
            keys.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: '{ADMIN.secret_key}'\n")
        ours = stack.enter_context(patient_turbopump(directory / "ours", ON if accounts else None))
        # the CRC of each message, as ours has it: it shows in sizes and properties
        apache = stack.enter_context(
            patient_apache(
                NEWEST,
                directory / "apache",
                enabledAppendPropCRC=True,
                **(APACHES_ON if accounts else {}),
            )
        )
        mqadmin = stack.enter_context(Mqadmin(directory / "mqadmin"))
        yield Sides(
            mqadmin,
            _side(directory / "ours", ours.namesrv, ours.broker),
            _side(directory / "apache", apache.namesrv, apache.broker),
        )


def _side(root: Path, namesrv: str, broker: str) -> dict[str, str]:
    files = root / "files"
    files.mkdir()
    for name, content in FILES.items():
        (files / name).write_text(json.dumps(content))
    return {"namesrv": namesrv, "broker": broker, "files": str(files), "root": str(root)}


@dataclass(frozen=True, slots=True)
class Sides:
    """What placeholders stand for, on ours and on Apache's."""

    mqadmin: Mqadmin
    ours: dict[str, str]
    apache: dict[str, str]
    late: list[str] = field(default_factory=list)
    """Commands that were tried once more."""

    def difference(self, step: Step) -> str:
        """What a command prints otherwise on ours, as a diff; nothing if it does not. Where a
        request of it had no answer within its five seconds, both are tried once more: a machine
        that stands still for so long says nothing about either server."""
        ours, apache = self._both_printed(step)
        if ours != apache and any(LATE.search(line) for line in (*ours, *apache)):
            self.late.append(step.command)
            ours, apache = self._both_printed(step)
        lines = difflib.unified_diff(ours, apache, "ours", "apache", lineterm="", n=0)
        return "\n".join(lines)

    def _both_printed(self, step: Step) -> tuple[list[str], list[str]]:
        return self._printed(step, self.ours), self._printed(step, self.apache)

    def on_ours(self, command: str) -> str:
        """What it prints on ours, word for word."""
        return self._run(command, self.ours)

    def _run(self, command: str, side: dict[str, str]) -> str:
        words = shlex.split(string.Template(command).substitute(side))
        return self.mqadmin.run(side["namesrv"], *words)

    def _printed(self, step: Step, side: dict[str, str]) -> list[str]:
        names = {value: name for name, value in side.items()}
        printed = plain(self._run(step.command, side), names)
        return [line for line in printed if step.about in line]
