"""The commands of Apache's mqadmin 5.3.3 that change something, each with its counterpart that
shows it, as they are tried on our servers and on Apache's."""

from __future__ import annotations

import difflib
import json
import shlex
import string
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.apache import NEWEST
from tests.interop.mqadmin import Mqadmin, plain
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import patient_apache


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


@contextmanager
def both(directory: Path) -> Iterator[Sides]:
    """Our servers and Apache's, each fresh, and one mqadmin for both."""
    with ExitStack() as stack:
        ours = stack.enter_context(patient_turbopump(directory / "ours"))
        # the CRC of each message, as ours has it: it shows in sizes and properties
        apache = stack.enter_context(
            patient_apache(NEWEST, directory / "apache", enabledAppendPropCRC=True)
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

    def difference(self, step: Step) -> str:
        """What a command prints otherwise on ours, as a diff; nothing if it does not."""
        ours, apache = (self._printed(step, side) for side in (self.ours, self.apache))
        lines = difflib.unified_diff(ours, apache, "ours", "apache", lineterm="", n=0)
        return "\n".join(lines)

    def _printed(self, step: Step, side: dict[str, str]) -> list[str]:
        words = shlex.split(string.Template(step.command).substitute(side))
        names = {value: name for name, value in side.items()}
        printed = plain(self.mqadmin.run(side["namesrv"], *words), names)
        return [line for line in printed if step.about in line]
