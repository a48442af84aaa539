//! The export: collectors that refuse, stall or are gone, its bounds, and its end.

use super::{parent, trace};
use crate::support::{Collector, Gateway, Reply, Setup, Upstream, token, until};

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
    until("it is counted", || gateway.figure("/traces/exported") >= 4).await;
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
