//! Which spans a request has, and that a collector cannot hurt.

use super::collector::Collector;
use super::{SPAN, trace};
use crate::support::{Client, Reply, TOKEN, Upstream, token};

const TRUSTED: &str =
    "[clients]\ntrusted_proxies = [\"127.0.0.1/32\"]\n[telemetry]\nsample = 0.0\n";

/// A `traceparent` with these flags.
fn parent(number: u32, flags: &str) -> String {
    format!("00-{}-{SPAN}-{flags}", trace(number))
}

#[tokio::test]
async fn a_miss_has_a_span_and_one_for_each_attempt_and_no_secret() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    upstream.once(TOKEN, Reply::status(503, "busy"));
    let (process, public) = collector.of(&upstream, TRUSTED);
    let mut client = Client::connect(public).await;
    let value = parent(1, "01");
    let fields = [
        ("traceparent", &*value),
        ("tracestate", "vendor=a-client-secret"),
        ("authorization", "Bearer a-client-secret"),
        ("x-api-key", "another-client-secret"),
        ("cookie", "session=a-client-secret"),
    ];
    let target = format!("{TOKEN}?unknown=a-client-secret");
    let answer = client.request("GET", &target, &fields).await;
    assert_eq!(answer.status, 200);
    let spans = collector.until_spans(3).await;
    let (requests, attempts): (Vec<_>, Vec<_>) = spans.iter().partition(|span| span.is_request());
    assert_eq!((requests.len(), attempts.len()), (1, 2), "{spans:#?}");
    let server = requests[0];
    assert_eq!(
        (server.trace(), server.parent()),
        (trace(1), SPAN.to_owned())
    );
    assert_eq!(server.name(), "GET /ordinals/v1/brc-20/tokens/{ticker}");
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.route", "/ordinals/v1/brc-20/tokens/{ticker}"),
        ("ordgate.route", "brc20-token"),
        ("url.path", TOKEN),
        ("url.query", ""),
        ("http.response.status_code", "200"),
        ("network.protocol.version", "1.1"),
        ("ordgate.cache", "miss"),
        ("ordgate.client.kind", "address"),
        ("ordgate.request_id", answer.must("x-request-id")),
        ("error.type", ""),
    ] {
        assert_eq!(server.attribute(name), value, "{name}");
    }
    let [began, ended] = server.times();
    let address = upstream.address();
    for (attempt, reason, status) in [(attempts[0], "miss", "503"), (attempts[1], "retry", "200")] {
        assert_eq!((attempt.trace(), attempt.parent()), (trace(1), server.id()));
        let [from, to] = attempt.times();
        assert!(began <= from && from <= to && to <= ended);
        for (name, value) in [
            ("http.request.method", "GET".to_owned()),
            ("server.address", "127.0.0.1".to_owned()),
            ("server.port", address.port().to_string()),
            ("url.full", format!("http://{address}{TOKEN}")),
            ("http.response.status_code", status.to_owned()),
            ("ordgate.attempt", reason.to_owned()),
        ] {
            assert_eq!(attempt.attribute(name), value, "{name}");
        }
        // The upstream's parent is the span of the attempt.
        let sent = format!("00-{}-{}-01", trace(1), attempt.id());
        let mut seen = upstream.seen().into_iter();
        assert!(seen.any(|seen| seen.field("traceparent").as_ref() == Some(&sent)));
    }
    let export = &collector.0.seen()[0];
    assert_eq!(
        (&*export.method(), &*export.target()),
        ("POST", "/v1/traces")
    );
    assert_eq!(export.field("x-tenant").unwrap(), "a b");
    assert_eq!(export.field("api-key").unwrap(), "hidden");
    let bodies = collector.bodies().concat();
    for text in [
        "\"edge\"",
        "\"zone\"",
        "\"north\"",
        env!("CARGO_PKG_VERSION"),
    ] {
        assert!(bodies.contains(text), "{bodies}");
    }
    assert!(!bodies.contains("secret"), "{bodies}");
    assert!(!bodies.contains("provider-key"), "{bodies}");
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[tokio::test]
async fn trusted_proxies_decide_and_otherwise_chance() {
    let trusted = "[clients]\ntrusted_proxies = [\"127.0.0.1/32\"]\n";
    for (who, flags, sample, is_recorded) in [
        (trusted, "01", "0.0", true),
        (trusted, "00", "1.0", false),
        ("", "01", "0.0", false),
        ("", "00", "1.0", true),
    ] {
        let (upstream, collector) = (Upstream::start(), Collector::start());
        let config = format!("{who}[telemetry]\nsample = {sample}\n");
        let (process, public) = collector.of(&upstream, &config);
        let value = parent(1, flags);
        let mut client = Client::connect(public).await;
        client
            .request("GET", &token(1), &[("traceparent", &value)])
            .await;
        let sent = upstream.seen().pop().unwrap().field("traceparent").unwrap();
        assert_eq!(sent == value, !is_recorded, "{who:?} {flags} {sample}");
        assert!(sent.contains(&trace(1)), "{sent}");
        drop(client);
        // All spans are exported before the process ends.
        process.signal(rustix::process::Signal::TERM);
        assert_eq!(process.wait().code(), Some(0));
        let requests = collector
            .spans()
            .into_iter()
            .filter(|span| span.is_request());
        assert_eq!(
            requests.count(),
            usize::from(is_recorded),
            "{who:?} {flags} {sample}"
        );
    }
}

/// A collector that never answers: clients notice nothing, and the process ends.
#[tokio::test]
async fn a_dead_collector_costs_requests_nothing() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    collector.0.always(Reply::nothing().hang());
    let (process, public) = collector.of(&upstream, "[telemetry]\nsample = 1.0\n");
    let mut client = Client::connect(public).await;
    for number in 0..20 {
        assert_eq!(client.get(&token(number)).await.status, 200);
    }
    drop(client);
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}
