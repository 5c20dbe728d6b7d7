"""The page about tracing, run as it stands against a receiver of OTLP on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.docs.test_pages import shell, write_files
from tests.observe.test_otel import Receiver


@pytest.mark.slow
def test_the_page_s_app_exports_what_the_page_says(tmp_path: Path) -> None:
    write_files("docs/tracing.md", tmp_path)
    receiver = Receiver()
    to = f"OTEL_EXPORTER_OTLP_ENDPOINT={receiver.url}"
    shell(f"{to} python shop.py\n{to} onefold worker shop:app --until-empty --no-progress", tmp_path)
    receiver.shutdown()
    receiver.server_close()
    requests = [ExportTraceServiceRequest.FromString(body) for path, body in receiver.all if path == "/v1/traces"]
    spans = [
        span
        for request in requests
        for one in request.resource_spans
        for scope in one.scope_spans
        for span in scope.spans
    ]
    by_name = {span.name: span for span in spans}
    assert {"POST /orders", "send orders", "receive orders", "process orders", "ask the courier", "send letters",
            "process letters", "settle letters"} <= set(by_name)  # fmt: skip
    assert by_name["send orders"].parent_span_id == by_name["POST /orders"].span_id
    assert by_name["process orders"].links[0].span_id == by_name["send orders"].span_id
    assert by_name["ask the courier"].parent_span_id == by_name["process orders"].span_id
    assert by_name["send letters"].parent_span_id == by_name["ask the courier"].span_id
