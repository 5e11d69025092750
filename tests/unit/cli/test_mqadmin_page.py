"""The page that maps the commands of Apache's mqadmin to ours: it has all of them, and each command
of ours that it names exists with its options."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from turbopump.cli.entry import turbopump

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "mqadmin.md"
_COMMANDS = """
    updateTopic updateTopicList deleteTopic updateSubGroup updateSubGroupList setConsumeMode
    deleteSubGroup updateBrokerConfig updateTopicPerm topicRoute topicStatus topicClusterList
    addBroker removeBroker resetMasterFlushOffset brokerStatus queryMsgById queryMsgByKey
    queryMsgByUniqueKey queryMsgByOffset queryMsgTraceById printMsg printMsgByQueue
    sendMsgStatus brokerConsumeStats producerConnection consumerConnection consumerProgress
    consumerStatus cloneGroupOffset producer clusterList topicList updateKvConfig
    deleteKvConfig wipeWritePerm addWritePerm resetOffsetByTime skipAccumulatedMessage
    updateOrderConf cleanExpiredCQ deleteExpiredCommitLog cleanUnusedTopic startMonitoring
    statsAll allocateMQ checkMsgSendRT clusterRT getNamesrvConfig updateNamesrvConfig
    getBrokerConfig getConsumerConfig queryCq sendMessage consumeMessage updateStaticTopic
    remappingStaticTopic exportMetadata exportConfigs exportMetrics exportMetadataInRocksDB
    exportPopRecord haStatus getSyncStateSet getBrokerEpoch getControllerMetaData
    getControllerConfig updateControllerConfig electMaster cleanBrokerMetadata
    dumpCompactionLog getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig
    removeColdDataFlowCtrGroupConfig setCommitLogReadAheadMode createUser updateUser
    deleteUser getUser listUser copyUser createAcl updateAcl deleteAcl getAcl listAcl copyAcl
    rocksDBConfigToJson checkRocksdbCqWriteProgress
"""
"""The commands that mqadmin 5.3.3 registers (MQAdminStartup), in its order."""
COMMANDS = _COMMANDS.split()
ROWS = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) ?\|$", PAGE.read_text(), re.MULTILINE)
OURS = sorted(set(re.findall(r"`turbopump ([^`]+)`", PAGE.read_text())))


def test_each_of_the_89_commands_has_one_row() -> None:
    named = [name for name, _, _ in ROWS if name != "mqadmin"]
    assert len(COMMANDS) == len(set(COMMANDS)) == 89
    assert sorted(named) == sorted(COMMANDS)


def test_a_command_without_a_counterpart_has_a_reason() -> None:
    for name, ours, note in ROWS:
        assert "`turbopump " in ours or (ours == "—" and note) or name == "mqadmin", name


@pytest.mark.parametrize("line", OURS)
def test_our_command_exists_with_its_options(line: str) -> None:
    words = line.split()
    command: click.Command = turbopump
    while words and isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, line
        command = found
    assert not isinstance(command, click.Group), line
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known, line
