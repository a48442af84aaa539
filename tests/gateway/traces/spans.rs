//! Which spans a request has.

use super::{SPAN, one, parent, request, trace};
use crate::support::{BLOCK, BLOCK_CANONICAL, Collector, Setup, Upstream};

#[tokio::test]
async fn a_miss_has_a_span_for_each_step_and_no_secret() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let setup = Setup::before(&upstream).keys("a-provider-key");
    let gateway = collector.of(setup).start();
    let value = parent(1, "01");
    let fields = [
        ("traceparent", &*value),
        ("tracestate", "vendor=1"),
        ("authorization", "Bearer a-client-secret"),
        ("x-api-key", "another-client-secret"),
        ("cookie", "session=a-client-secret"),
    ];
    let target = format!("{BLOCK}?unknown=a-client-secret");
    let answer = gateway.request("GET", &target, &fields).await;
    assert_eq!(answer.status, 200);
    let id = trace(1);
    let spans = collector.until_traces(&[&id]).await;
    let server = request(&spans, &id);
    assert_eq!(server.parent(), SPAN);
    assert_eq!(server.name(), "GET /runes/v1/blocks/{block}/activity");
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.route", "/runes/v1/blocks/{block}/activity"),
        ("ordgate.route", "rune-block-activity"),
        ("url.path", BLOCK),
        ("url.query", "limit=20&offset=0"),
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
    for name in ["queue", "upstream", "store"] {
        let child = one(&spans, &id, name);
        assert_eq!(child.parent(), server.id(), "{name}");
        let [from, to] = child.times();
        assert!(began <= from && from <= to && to <= ended, "{name}");
    }
    let attempt = one(&spans, &id, "upstream");
    let address = upstream.address();
    for (name, value) in [
        ("http.request.method", "GET".to_owned()),
        ("server.address", "127.0.0.1".to_owned()),
        ("server.port", address.port().to_string()),
        ("url.full", format!("http://{address}{BLOCK_CANONICAL}")),
        ("http.response.status_code", "200".to_owned()),
        ("ordgate.attempt", "miss".to_owned()),
    ] {
        assert_eq!(attempt.attribute(name), value, "{name}");
    }
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let bodies = collector.bodies().concat();
    assert!(!bodies.contains("secret"), "{bodies}");
    assert!(!bodies.contains("provider-key"), "{bodies}");
    assert!(
        !bodies.contains("127.0.0.1\"}},{\"key\":\"ordgate.client"),
        "{bodies}"
    );
}
