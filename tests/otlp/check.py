"""Sends requests through an ordgate that exports their spans: to a recording server, and to
a collector (rotel) that forwards them there. The server decodes what comes with the classes
that OpenTelemetry makes of its definitions."""

import gzip
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import rotel
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

BINARY = sys.argv[1]
# However busy the machine is.
PATIENCE = 120
PATH = "/ordinals/v1/brc-20/tokens/ordi"
PARENT = "00f067aa0ba902b7"


def until(what, condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def unknown(message):
    """Fields that the definitions do not have."""
    found = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts = value if field.is_repeated else [value]
            found += sum(unknown(part) for part in parts)
    return found


class Recorder(ThreadingHTTPServer):
    """A server that keeps the exports."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.exports = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self, trace):
        """The spans of a trace, by name, each with its resource."""
        return {
            span.name: (span, group.resource)
            for export in list(self.exports)
            for group in export.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
            if span.trace_id.hex() == trace
        }


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        export = ExportTraceServiceRequest.FromString(body)
        self.server.exports.append(export)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Process:
    """A child that ends with the block. Its output goes to a file."""

    def __init__(self, arguments, variables):
        # Those of ordgate, and of exports, would change the configuration.
        names = re.compile("(ORDGATE|OTEL|ROTEL)_")
        inherited = {name: value for name, value in os.environ.items() if not names.match(name)}
        self.log = tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(
            arguments, env={**inherited, **variables}, stdout=self.log, stderr=self.log
        )

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start_collector(recorder):
    """The collector, and its URL. Another process may have taken its port meanwhile."""
    agent = pathlib.Path(rotel.__file__).with_name("rotel-agent")
    for _ in range(5):
        ports = []
        for _ in range(2):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        http, grpc = ports
        collector = Process(
            [
                agent, "start", "--exporter", "otlp", "--otlp-exporter-protocol", "http",
                "--otlp-exporter-endpoint", recorder.url, "--batch-timeout", "200ms",
                "--otlp-http-endpoint", f"127.0.0.1:{http}",
                "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
            ],
            {},
        )  # fmt: skip
        until("the collector starts", lambda: answers(http) or collector.child.poll() is not None)
        if collector.child.poll() is None:
            return collector, f"http://127.0.0.1:{http}"
        print(collector.text(), file=sys.stderr)
    raise AssertionError("the collector does not start")


def attributes(holder):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes}


def check(recorder, endpoint, trace, variables):
    """One request through an ordgate that exports to an endpoint, and what comes of it."""
    config = tempfile.NamedTemporaryFile("w", suffix=".toml")
    # Only a trusted proxy may ask for spans.
    config.write('[clients]\ntrusted_proxies = ["127.0.0.1/32"]\n')
    config.flush()
    arguments = [
        BINARY, "serve", "--sandbox", "--config", config.name, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    ]  # fmt: skip
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50", **variables}
    with Process(arguments, variables) as ordgate:
        ready = re.compile(r"ready on (http:\S+) \(admin on (http:\S+)\)")
        public, _ = until("ordgate is ready", lambda: ready.search(ordgate.text())).groups()
        parent = {"traceparent": f"00-{trace}-{PARENT}-01"}
        with urllib.request.urlopen(urllib.request.Request(public + PATH, headers=parent)) as answer:
            assert answer.status == 200
            request_id = answer.headers["x-request-id"]
        server = "GET /ordinals/v1/brc-20/tokens/{ticker}"
        names = {server, "upstream"}
        until("the spans have come", lambda: names <= recorder.spans(trace).keys())
    spans = recorder.spans(trace)
    assert spans.keys() == names, spans.keys()
    root, resource = spans[server]
    assert attributes(resource)["service.name"] == "ordgate"
    assert (root.parent_span_id.hex(), root.kind) == (PARENT, root.SPAN_KIND_SERVER)
    found = attributes(root)
    expected = {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "url.path": PATH,
        "ordgate.cache": "miss",
        "ordgate.request_id": request_id,
    }
    for name, value in expected.items():
        assert found[name] == value, (name, found)
    for name in names - {server}:
        child, _ = spans[name]
        assert child.parent_span_id == root.span_id, name
        assert root.start_time_unix_nano <= child.start_time_unix_nano, name
        assert child.start_time_unix_nano <= child.end_time_unix_nano <= root.end_time_unix_nano, name
    assert spans["upstream"][0].kind == root.SPAN_KIND_CLIENT


def main():
    recorder = Recorder()
    collector, forwarding = start_collector(recorder)
    passed = 0
    with collector:
        rows = [
            ("the definitions decode an export", recorder.url, {}),
            ("and a compressed one", recorder.url, {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}),
            ("a collector takes and forwards it", forwarding, {}),
            ("and a compressed one", forwarding, {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}),
            ("and JSON", forwarding, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}),
        ]
        for number, (name, endpoint, variables) in enumerate(rows, 1):
            check(recorder, endpoint, f"{number:032x}", variables)
            print(f"ok      {name}")
            passed += 1
    assert sum(map(unknown, recorder.exports)) == 0, "the definitions do not have all fields"
    print(f"{passed} passed, 0 failed")


main()
