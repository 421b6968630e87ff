"""Metrics, traces and log lines of a process. The global providers are set once, so these run in one of their own."""

import logging
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from runlane.hosting.exposition import exposition, sample
from runlane.hosting.spans import continuing
from runlane.hosting.telemetry import JsonLines, TextLines, about_run
from runlane.kernel.faults import trace_of
from runlane_contracts.codec import decode_json
from runlane_contracts.subjects import RunAddress
from runlane_contracts.telemetry import LogEvent
from runlane_contracts.tracing import run_trace_id


def run(script):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, timeout=30
    )


@contextmanager
def collector():
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            got.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            server.shutdown()
            serving.join()


def test_metrics_read_as_prometheus_text():
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    meter = provider.get_meter("runlane")
    meter.create_counter("runlane_facts_total", description="Facts.").add(3, {"service": 'a"b'})
    meter.create_up_down_counter("runlane_watchers").add(-1)
    meter.create_histogram("runlane_seconds", explicit_bucket_boundaries_advisory=[0.1, 1.0]).record(0.5)
    text = exposition(reader.get_metrics_data())
    assert "# HELP runlane_facts_total Facts.\n# TYPE runlane_facts_total counter" in text
    assert 'runlane_facts_total{service="a\\"b"} 3' in text
    assert "# TYPE runlane_watchers gauge\nrunlane_watchers -1" in text
    assert 'runlane_seconds_bucket{le="0.1"} 0' in text
    assert 'runlane_seconds_bucket{le="+Inf"} 1' in text
    assert "runlane_seconds_sum 0.5\nrunlane_seconds_count 1" in text
    provider.shutdown()


def test_nothing_measured_is_an_empty_text():
    assert exposition(None) == ""
    assert sample("a", {}, 1.5) == "a 1.5"


def test_without_a_collector_no_exporter_is_loaded_and_metrics_are_there():
    done = run("""
        import sys
        from runlane.hosting.settings import CommonSettings
        import contextlib
        from runlane.hosting.spans import continuing, processing, sending
        from runlane.hosting.telemetry import current_traceparent, observe, observe_consumers, start_telemetry
        from runlane_contracts.subjects import RunAddress
        from runlane.kernel.durable import ConsumerStats
        from runlane_contracts.streams import Layout
        from runlane_contracts.telemetry import Metric
        telemetry = start_telemetry(CommonSettings(), "projector", "1.2.3")
        observe(Metric.WATCHERS, lambda: [(7, {"route": "d"})])

        class Consumer:
            spec = Layout().consumers()[0]
            stats = ConsumerStats(acknowledged=5, lag=2, in_hand=1)

            @staticmethod
            def oldest_in_hand_ns():
                return 0

        observe_consumers({"filter": [Consumer]})
        run = RunAddress("acme", "r1")
        with sending("RL_COMMAND", message_id="c1", run=run):
            assert current_traceparent() is None
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with processing("RL_COMMAND", parent, durable="d", message_id="c1", run=run, more={}):
            assert current_traceparent() == parent
        assert current_traceparent() is None
        text = telemetry.exposition()
        assert 'runlane_watchers{route="d"} 7' in text, text
        labels = 'durable="redaction-filter-v1-0"'
        assert f'runlane_consumer_lag_messages{{{labels},service="filter"}} 3' in text, text
        assert f'runlane_deliveries_total{{{labels},outcome="acknowledged",service="filter"}} 5' in text, text
        assert 'runlane_up_info{service="projector",version="1.2.3"} 1' in text, text
        assert not telemetry.is_exported
        assert "opentelemetry.exporter" not in " ".join(sys.modules)
        telemetry.close()
    """)
    assert done.returncode == 0, done.stderr


def test_with_a_collector_traces_and_metrics_reach_it_and_traces_continue():
    with collector() as (url, got):
        done = run(f"""
            from runlane.hosting.settings import CommonSettings
            from runlane.hosting.spans import processing
            from runlane.hosting.telemetry import current_traceparent, start_telemetry
            from runlane_contracts.subjects import RunAddress
            telemetry = start_telemetry(CommonSettings(telemetry_endpoint={url!r}), "projector", "1")
            parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            run = RunAddress("acme", "r1")
            with processing("RL_COMMAND", parent, durable="d", message_id="c1", run=run, more={{}}):
                inside = current_traceparent()
                assert inside.startswith("00-0af7651916cd43dd8448eb211c80319c-"), inside
                assert inside != parent
            telemetry.close()
        """)
        assert done.returncode == 0, done.stderr
        assert set(got) == {"/v1/traces", "/v1/metrics"}


def record(**extra):
    one = logging.LogRecord("runlane.x", logging.WARNING, "x.py", 1, "lag is %d", (3,), None)
    vars(one).update(extra)
    return one


def test_a_json_line_has_its_event_and_fields():
    line = decode_json(JsonLines("projector", "one").format(record(event=LogEvent.CONSUMER_RECREATED, lag=3)))
    assert line["event"] == "consumer.recreated"
    assert (line["level"], line["message"], line["lag"], line["instance"]) == ("warning", "lag is 3", 3, "one")


def test_a_line_for_people_names_the_service():
    assert TextLines("projector").format(record(lag=3)).endswith("warning projector: lag is 3 lag=3 trace_id=")


def test_every_line_has_the_trace_of_what_it_is_about_else_that_of_its_process():
    """Taken out: the trace in `_trace_id`; then the line inside has the process's too."""
    lines = JsonLines("projector", "one", "ef" * 16)
    assert decode_json(lines.format(record()))["trace_id"] == "ef" * 16
    with continuing(f"00-{'ab' * 16}-{'cd' * 8}-00"):
        assert decode_json(lines.format(record()))["trace_id"] == "ab" * 16
        assert TextLines("projector", "ef" * 16).format(record()).endswith(f"trace_id={'ab' * 16}")
    with continuing("nonsense"):
        assert decode_json(lines.format(record()))["trace_id"] == "ef" * 16


def test_a_line_about_a_run_has_its_trace_also_where_no_message_of_it_is_at_hand():
    """Taken out: the tenant and run in `_trace_id`; then the line has the process's."""
    lines, run = JsonLines("projector", "one", "ef" * 16), RunAddress("acme", "r1")
    said = decode_json(lines.format(record(**about_run(run, event=LogEvent.VIEW_HOLE))))
    assert (said["event"], said["run_id"], said["trace_id"]) == ("view.hole", "r1", run_trace_id("acme", "r1"))
    known = record(**about_run(run, "ab" * 16))
    with continuing(f"00-{'12' * 16}-{'cd' * 8}-00"):
        assert decode_json(lines.format(known))["trace_id"] == "ab" * 16
        assert decode_json(lines.format(record(**about_run(run))))["trace_id"] == "12" * 16
    assert TextLines("projector", "ef" * 16).format(known).endswith(f"trace_id={'ab' * 16}")


def test_services_that_share_a_process_report_the_same_metric_side_by_side():
    """Taken out: the list of readers in `observe`; then the SDK hears the first one only."""
    done = run("""
        from runlane.hosting.settings import CommonSettings
        from runlane.hosting.telemetry import observe, start_telemetry
        from runlane_contracts.telemetry import Metric
        telemetry = start_telemetry(CommonSettings(), "up", "1")
        for service in ("a", "b"):
            observe(Metric.FACTS, lambda service=service: [(1, {"service": service})], rises=True)
        text = telemetry.exposition()
        assert 'runlane_facts_total{service="a"} 1' in text, text
        assert 'runlane_facts_total{service="b"} 1' in text, text
        assert text.count("# TYPE runlane_facts_total") == 1, text
        telemetry.close()
    """)
    assert done.returncode == 0, done.stderr


def test_the_trace_of_an_error_does_not_quote_it():
    try:
        try:
            {}["a secret"]
        except KeyError as exc:
            raise ValueError("another secret") from exc
    except ValueError as exc:
        text = trace_of(exc)
    assert "secret" not in text
    assert text.startswith("ValueError at test_telemetry.py:")
    assert " from KeyError at test_telemetry.py:" in text
