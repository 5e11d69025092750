"""Cost of metrics: which figures are reached, and what a scraper notes."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bench.metrics_cost import Scraper, judged_sends


@pytest.mark.parametrize(
    ("rates", "costs", "stalls", "missed"),
    [
        ([0.99, 0.5, 0.985], [1.0, 1.3, 1.01], [1.0, 19.0], [False, False, False]),
        ([0.97, 0.99, 0.97], [1.03, 1.03, 1.0], [1.0, 21.0], [True, True, True]),
    ],
)
def test_medians_of_the_pairs_and_the_longest_stall_are_judged(
    rates: list[float], costs: list[float], stalls: list[float], missed: list[bool]
) -> None:
    rows = judged_sends(rates, costs, stalls)
    assert [row[-1] == "MISSED" for row in rows] == missed


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'# TYPE lag gauge\nlag 1\nlag{a="b"} 2\n')

    def log_message(self, *_arguments: object) -> None:
        pass


def test_a_scraper_counts_series_and_times_each_scrape() -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            scraper = Scraper(server.server_port)
            assert "lag 1" in scraper.fetch()
            scraper.fetch()
        finally:
            server.shutdown()
            thread.join()
    assert (scraper.lines, len(scraper.times)) == (2, 2)
