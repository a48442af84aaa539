//! The export: collectors that refuse, stall or are gone, its bounds, and its end.

use rustix::process::Signal;

use super::{parent, request, trace};
use crate::support::{Client, Collector, Gateway, Process, Reply, Setup, Upstream, token, until};

/// A miss in a sampled trace of this number.
async fn miss(gateway: &Gateway, number: u32) {
    let parent = parent(number, "01");
    let fields = [("traceparent", &*parent)];
    let target = token(number as usize);
    let answer = gateway.request("GET", &target, &fields).await;
    assert_eq!(answer.status, 200);
}

/// A metric of the export, by its end.
async fn metric(gateway: &Gateway, name: &str) -> u64 {
    let answer = gateway.admin("/metrics").await;
    let mut lines = answer.text().lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {}", answer.text()))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn the_request_is_that_of_otlp() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let setup = collector
        .of(Setup::before(&upstream))
        .collector(
            "OTEL_EXPORTER_OTLP_HEADERS",
            "x-tenant=a%20b,api-key=hidden",
        )
        .collector("OTEL_SERVICE_NAME", "edge")
        .collector("OTEL_RESOURCE_ATTRIBUTES", "zone=a%2Cb");
    let gateway = setup.start();
    miss(&gateway, 1).await;
    collector.until_traces(&[&trace(1)]).await;
    let seen = &collector.0.seen()[0];
    assert_eq!((&*seen.method(), &*seen.target()), ("POST", "/v1/traces"));
    assert_eq!(seen.field("content-type").unwrap(), "application/json");
    assert_eq!(seen.field("x-tenant").unwrap(), "a b");
    assert_eq!(seen.field("api-key").unwrap(), "hidden");
    let body: serde_json::Value = serde_json::from_str(&collector.bodies()[0]).unwrap();
    let resource = body["resourceSpans"][0]["resource"]["attributes"].to_string();
    for text in ["\"edge\"", "\"zone\"", "\"a,b\"", env!("CARGO_PKG_VERSION")] {
        assert!(resource.contains(text), "{resource}");
    }
    until("it is counted", || gateway.figure("/traces/exported") >= 5).await;
    let exported = gateway.figure("/traces/exported");
    assert!(metric(&gateway, "ordgate_spans_total{result=\"exported\"}").await >= exported);
    assert_eq!(
        metric(&gateway, "ordgate_spans_total{result=\"failed\"}").await,
        0
    );
    // What authorizes towards the collector is nowhere else.
    for page in ["/status", "/metrics"] {
        let text = gateway.admin(page).await;
        assert!(!text.text().contains("hidden"), "{page}");
    }
}

/// What the collector answers first, and whether the spans are sent again.
#[tokio::test]
async fn what_may_succeed_later_is_sent_again() {
    for (reply, again) in [
        (Reply::with(429, "retry-after: 0\r\n", ""), true),
        (Reply::status(502, ""), true),
        (Reply::with(503, "retry-after: 0\r\n", ""), true),
        (Reply::status(504, ""), true),
        (Reply::nothing().close(), true),
        (Reply::status(400, ""), false),
        (Reply::status(500, ""), false),
        (Reply::with(307, "location: /elsewhere\r\n", ""), false),
    ] {
        let (upstream, collector) = (Upstream::start(), Collector::start());
        collector.0.once("/v1/traces", reply);
        let gateway = collector.of(Setup::before(&upstream)).start();
        miss(&gateway, 1).await;
        let name = match again {
            true => "/traces/exported",
            false => "/traces/failed",
        };
        until("the outcome is counted", || gateway.figure(name) >= 1).await;
        let bodies = collector.bodies();
        assert_eq!(
            again,
            bodies.len() > 1 && bodies[0] == bodies[1],
            "{bodies:?}"
        );
        assert!(
            collector
                .0
                .targets()
                .iter()
                .all(|target| target == "/v1/traces")
        );
    }
}

/// The collector has taken them: sent again, it would have them twice.
#[tokio::test]
async fn spans_are_not_sent_again_after_a_broken_acceptance() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    for reply in [
        Reply::raw(format!("{head}content-length: 100\r\n\r\n{{")).close(),
        Reply::json("no JSON"),
        Reply::json("x".repeat(100_000)),
    ] {
        let (upstream, collector) = (Upstream::start(), Collector::start());
        collector.0.once("/v1/traces", reply);
        let gateway = collector.of(Setup::before(&upstream)).start();
        miss(&gateway, 1).await;
        let taken = || gateway.figure("/traces/exported") + gateway.figure("/traces/failed");
        until("the outcome is counted", || taken() >= 5).await;
        assert_eq!(gateway.figure("/traces/failed"), 0);
        let mut ids: Vec<_> = collector.bodies();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), collector.bodies().len(), "{ids:?}");
    }
}

#[tokio::test]
async fn spans_that_the_collector_rejects_are_counted_as_failed() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let partial = r#"{"partialSuccess":{"rejectedSpans":"1","errorMessage":"no"}}"#;
    collector.0.once("/v1/traces", Reply::json(partial));
    let gateway = collector.of(Setup::before(&upstream)).start();
    miss(&gateway, 1).await;
    until("one is rejected", || gateway.figure("/traces/failed") == 1).await;
}

/// A collector that stalls, and one that is gone: clients notice nothing.
#[tokio::test]
async fn a_dead_collector_costs_requests_nothing() {
    for is_gone in [false, true] {
        let (upstream, collector) = (Upstream::start(), Collector::start());
        collector.0.always(Reply::nothing().hang());
        let mut setup = collector.of(Setup::before(&upstream));
        let (_refusing, address) = crate::support::upstream::refusing();
        if is_gone {
            setup = setup.collector("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}"));
        }
        let gateway = setup.start();
        for number in 0..20 {
            miss(&gateway, number).await;
        }
        assert_eq!(gateway.figure("/traces/exported"), 0);
        assert_eq!(gateway.figure("/traces/dropped"), 0);
        // It ends in bounded time, though the collector never answers.
        gateway.end().await;
    }
}

/// By a clock that stands still, all of this is one second.
#[tokio::test]
async fn one_clients_flood_leaves_the_traces_of_others() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let setup = collector.of(Setup::before(&upstream)).manual();
    let gateway = setup
        .config("telemetry = { max_traces = 3, max_traces_per_client = 2 }")
        .config("limit.enabled = false")
        .start();
    let mut hostile = gateway.client_from([127, 0, 0, 2]).await;
    for number in 100..150 {
        let parent = parent(number, "01");
        let fields = [("traceparent", &*parent)];
        let target = token(number as usize);
        let answer = hostile.request("GET", &target, &fields).await;
        assert_eq!(answer.status, 200);
        // What is not recorded is passed on as it came.
        let is_recorded = number < 102;
        let seen = upstream.seen().last().unwrap().field("traceparent");
        assert_eq!(seen != Some(parent), is_recorded, "{number}");
    }
    miss(&gateway, 1).await;
    let spans = collector.until_traces(&[&trace(1), &trace(101)]).await;
    assert_eq!(
        collector.requests().len(),
        3,
        "two of the flood, and the other's"
    );
    assert!(!request(&spans, &trace(1)).has_failed());
    assert_eq!(gateway.figure("/traces/limited"), 48);
    assert_eq!(metric(&gateway, "ordgate_traces_limited_total{}").await, 48);
}

/// What waits when the process is told to stop is exported before it ends.
#[tokio::test]
async fn the_last_spans_are_exported_on_drain() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let variables = collector.variables();
    let mut variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    variables.retain(|(name, _)| *name != "OTEL_BSP_SCHEDULE_DELAY");
    variables.push(("OTEL_BSP_SCHEDULE_DELAY", "3600000"));
    // However busy the machine is.
    variables.push(("OTEL_BSP_EXPORT_TIMEOUT", "60000"));
    let (process, public, _) = Process::before(&upstream, &[], &variables);
    let parent = parent(1, "01");
    let mut client = Client::connect(public).await;
    let fields = [("traceparent", &*parent)];
    assert_eq!(client.request("GET", &token(1), &fields).await.status, 200);
    drop(client);
    assert_eq!(collector.0.count(), 0, "it waits for an hour");
    process.signal(Signal::TERM);
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    request(&collector.spans(), &trace(1));
}

#[tokio::test]
async fn a_collector_that_cannot_be_used_is_refused_at_the_start_and_by_check() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    for (variables, word) in [
        (
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317")][..],
            "http or https",
        ),
        (
            &[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            "http/protobuf",
        ),
        (
            &[
                endpoint,
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file"),
            ],
            "PEM",
        ),
    ] {
        for command in ["serve", "check"] {
            let left = Process::run(&[command], variables);
            assert_ne!(left.code(), Some(0), "{command} {variables:?}");
            assert!(left.errors.contains(word), "{command}: {}", left.errors);
            let said = left.errors.matches("No such file").count();
            assert!(said <= 1, "{}", left.errors);
        }
    }
    let left = Process::run(&["check", "--sandbox"], &[endpoint]);
    assert_eq!(left.code(), Some(0), "{}", left.errors);
}
