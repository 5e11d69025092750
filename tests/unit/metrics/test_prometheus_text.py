"""Text for Prometheus: the bytes of each kind of metric, and the steps of a long page."""

import pytest

from turbopump.metrics.family import Distribution, Family, Kind, Metrics
from turbopump.metrics.prometheus_text import SAMPLES_A_PIECE, text_pieces
from turbopump.metrics.tables import CounterTable, HistogramTable

SENT = Family("sent_total", Kind.COUNTER, "Messages\nthat \\ were sent.", ("topic", "type"))
SIZE = Family("size", Kind.HISTOGRAM, "Sizes.", ("topic",), bounds=(1, 2.5))
LAG = Family("lag", Kind.GAUGE, "Lag.")


def text(metrics: Metrics) -> str:
    return "".join(text_pieces(metrics))


def test_a_counter_has_one_line_for_each_series() -> None:
    table = CounterTable(SENT)
    table.add(("a", "normal"), 2)
    table.add(('b"\\\n', "delay"))
    table.add(("a", "normal"))
    metrics = Metrics({"cluster": "c"})
    metrics.add(SENT, table.read)
    assert text(metrics) == (
        "# HELP sent_total Messages\\nthat \\\\ were sent.\n"
        "# TYPE sent_total counter\n"
        'sent_total{cluster="c",topic="a",type="normal"} 3\n'
        'sent_total{cluster="c",topic="b\\"\\\\\\n",type="delay"} 1\n'
    )
    table.forget(lambda values: values[0] == "a")
    assert 'topic="a"' not in text(metrics)


def test_labels_of_a_server_have_valid_names_and_give_way_to_those_of_the_metric() -> None:
    metrics = Metrics({"my-label": "x", "1a": "y", "__b": "z", "topic": "mine", "le": "7"})
    metrics.add(SENT, lambda: [(("a", ""), 1)])
    metrics.add_value(LAG, lambda: 1)
    lines = text(metrics).splitlines()
    assert lines[2] == 'sent_total{my_label="x",_1a="y",_b="z",topic="a"} 1'
    assert lines[-1] == 'lag{my_label="x",_1a="y",_b="z",topic="mine"} 1'


def test_a_histogram_has_cumulative_buckets_a_sum_and_a_count() -> None:
    table = HistogramTable(SIZE)
    for value in (1, 2, 2.5, 9):
        table.observe(("a",), value)
    table.observe(("a",), 0.5, times=2)
    metrics = Metrics()
    metrics.add(SIZE, table.read)
    assert text(metrics) == (
        "# HELP size Sizes.\n# TYPE size histogram\n"
        'size_bucket{topic="a",le="1.0"} 3\n'
        'size_bucket{topic="a",le="2.5"} 5\n'
        'size_bucket{topic="a",le="+Inf"} 6\n'
        'size_sum{topic="a"} 15.5\n'
        'size_count{topic="a"} 6\n'
    )
    table.forget(lambda values: True)
    assert text(metrics) == "# HELP size Sizes.\n# TYPE size histogram\n"


@pytest.mark.parametrize(
    ("value", "written"),
    [(True, "1"), (12, "12"), (0.25, "0.25"), (float("nan"), "NaN"), (float("-inf"), "-Inf")],
)
def test_a_value_without_labels_has_no_braces(value: float, written: str) -> None:
    metrics = Metrics()
    metrics.add_value(LAG, lambda: value)
    assert text(metrics).splitlines()[-1] == f"lag {written}"


def test_sources_of_one_family_stand_together() -> None:
    metrics = Metrics()
    metrics.add(SENT, lambda: [(("a", "x"), 1)])
    metrics.add_value(LAG, lambda: 7)
    metrics.add(SENT, lambda: [(("b", "x"), Distribution((1,), 1).total)])
    names = [line.split("{")[0].split(" ")[0] for line in text(metrics).splitlines()]
    assert names == ["#", "#", "sent_total", "sent_total", "#", "#", "lag"]


def test_a_long_family_comes_in_short_pieces() -> None:
    metrics = Metrics()
    metrics.add(SENT, lambda: ((("t", str(number)), number) for number in range(1000)))
    metrics.add(SIZE, lambda: [None, None])
    pieces = list(text_pieces(metrics))
    assert max(piece.count("\n") for piece in pieces) <= SAMPLES_A_PIECE
    assert len(pieces) >= 1000 / SAMPLES_A_PIECE + 2, "a step without a sample is a piece too"


def test_an_empty_label_is_left_out() -> None:
    metrics = Metrics()
    metrics.add(SENT, lambda: [(("a", ""), 1)])
    assert text(metrics).splitlines()[-1] == 'sent_total{topic="a"} 1'


def test_a_label_without_a_value_is_absent_for_every_reader() -> None:
    assert SENT.own_labels(("a", "")) == {"topic": "a"}
    assert SENT.own_labels(("", "delay")) == {"type": "delay"}
