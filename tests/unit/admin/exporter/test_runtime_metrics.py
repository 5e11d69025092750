"""Texts of a broker's runtime figures become numbers."""

from turbopump.admin.exporter.broker_answers import BrokerAnswers, BrokerName
from turbopump.admin.exporter.runtime_metrics import runtime_samples


def values(figures: dict[str, str]) -> dict[str, float]:
    """Value of each metric, by its name without the common beginning."""
    answers = BrokerAnswers(BrokerName("c", "a", 0), "h:1", figures)
    return {
        family.name.removeprefix("rocketmq_brokeruntime_"): value
        for family, _, value in runtime_samples(answers)
    }


def test_sizes_rates_and_counts_are_read_from_their_texts() -> None:
    figures = {
        "msgPutTotalTodayNow": "12",
        "commitLogDirCapacity": "Total : 9.5 GiB, Free : 512.0 MiB.",
        "remainHowManyDataToFlush": "1.5 KiB",
        "putTps": "1.5 0.25 0.125",
        "putMessageDistributeTime": "[<=0ms]:7 [0~10ms]:2 [10s~]:1 ",
    }
    assert values(figures) == {
        "msg_put_total_today_now": 12,
        "commitlogdir_capacity_total": 9.5 * 1024**3,
        "commitlogdir_capacity_free": 512 * 1024**2,
        "remain_howmanydata_toflush": 1536,
        "put_tps10": 1.5,
        "put_tps60": 0.25,
        "put_tps600": 0.125,
        "pmdt_0ms": 7,
        "pmdt_0to10ms": 2,
        "pmdt_10stomore": 1,
    }


def test_the_old_spelling_of_a_figure_is_known() -> None:
    assert values({"getTransferedTps": "3.0 2.0 1.0"})["gettransfered_tps60"] == 2.0


def test_a_rate_that_a_young_broker_does_not_have_yet_is_0() -> None:
    rates = {"put_tps10": 3.0, "put_tps60": 0.0, "put_tps600": 0.0}
    assert values({"putTps": "3.0"}) == rates


def test_a_figure_that_is_no_number_has_no_series() -> None:
    assert values({"putLatency99": "", "putTps": "", "putMessageDistributeTime": "null"}) == {}


def test_the_labels_name_the_broker() -> None:
    figures = {
        "dispatchBehindBytes": "0",
        "bootTimestamp": "17",
        "brokerVersion": "477",
        "brokerVersionDesc": "V5_3_3",
    }
    answers = BrokerAnswers(BrokerName("c", "a", 0), "h:1", figures)
    ((family, labels, _),) = runtime_samples(answers)
    assert dict(zip(family.labels, labels, strict=True)) == {
        "cluster": "c",
        "brokerIP": "h:1",
        "brokerHost": "a",
        "des": "V5_3_3",
        "boottime": "17",
        "broker_version": "477",
    }
