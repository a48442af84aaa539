//! Which spans a request has.

use super::{SPAN, of, one, parent, request, trace};
use crate::respect::plain;
use crate::support::{
    BLOCK, BLOCK_CANONICAL, Collector, Gate, Gateway, Reply, Setup, Upstream, token, until,
};

/// A request with a sampled `traceparent`, in a trace of this number.
async fn sampled(gateway: &Gateway, target: &str, number: u32) -> u16 {
    let parent = parent(number, "01");
    let fields = [("traceparent", &*parent)];
    gateway.request("GET", target, &fields).await.status
}

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
    for name in ["queue", "budget", "upstream", "store"] {
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
        ("http.request.resend_count", String::new()),
    ] {
        assert_eq!(attempt.attribute(name), value, "{name}");
    }
    assert_eq!(spans.len(), 5, "{spans:#?}");
    let bodies = collector.bodies().concat();
    assert!(!bodies.contains("secret"), "{bodies}");
    assert!(!bodies.contains("provider-key"), "{bodies}");
    assert!(
        !bodies.contains("127.0.0.1\"}},{\"key\":\"ordgate.client"),
        "{bodies}"
    );
}

#[tokio::test]
async fn only_what_leaves_memory_and_is_sampled_has_spans() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = collector.of(Setup::before(&upstream)).manual().start();
    assert_eq!(sampled(&gateway, &token(1), 1).await, 200);
    // Hits, a refusal, a client that does not record, and one without a trace.
    assert_eq!(sampled(&gateway, &token(1), 2).await, 200);
    assert_eq!(sampled(&gateway, "/nowhere", 3).await, 404);
    let plain = parent(4, "00");
    let fields = [("traceparent", &*plain)];
    gateway.request("GET", &token(2), &fields).await;
    gateway.get(&token(3)).await;
    assert_eq!(sampled(&gateway, &token(4), 5).await, 200);
    collector.until_traces(&[&trace(1), &trace(5)]).await;
    assert_eq!(collector.requests().len(), 2, "{:#?}", collector.spans());
}

#[tokio::test]
async fn requests_without_a_trace_are_sampled_by_chance() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let setup = collector.of(Setup::before(&upstream));
    let gateway = setup.config("telemetry.sample = 1.0").start();
    // The word of a parent counts, whatever the share is.
    let plain = parent(4, "00");
    let fields = [("traceparent", &*plain)];
    gateway.request("GET", &token(1), &fields).await;
    gateway.get(&token(2)).await;
    until("the trace is exported", || !collector.requests().is_empty()).await;
    let requests = collector.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].parent(), "", "a trace of ordgate's own");
    let seen = upstream.seen()[1].field("traceparent").unwrap();
    assert!(seen.contains(&requests[0].trace()), "{seen}");
    assert!(seen.ends_with("-03"), "{seen}");
    // A reload changes the share.
    let reloaded = gateway.reload("telemetry.sample = 0.0").await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    gateway.get(&token(3)).await;
    assert_eq!(upstream.seen()[2].field("traceparent"), None);
}

#[tokio::test]
async fn a_retry_is_a_second_attempt() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = collector.of(Setup::before(&upstream)).start();
    upstream.once(&token(1), Reply::status(503, "busy"));
    assert_eq!(sampled(&gateway, &token(1), 1).await, 200);
    let spans = collector.until_traces(&[&trace(1)]).await;
    let mut attempts = of(&spans, &trace(1), "upstream");
    attempts.sort_by_key(|span| span.times());
    let all = |name: &str| -> Vec<_> { attempts.iter().map(|a| a.attribute(name)).collect() };
    assert_eq!(all("http.response.status_code"), ["503", "200"]);
    assert_eq!(all("ordgate.attempt"), ["miss", "retry"]);
    assert_eq!(all("http.request.resend_count"), ["", "1"]);
    assert_eq!(all("error.type"), ["server_error", ""]);
    assert!(attempts[0].has_failed() && !attempts[1].has_failed());
    assert!(!request(&spans, &trace(1)).has_failed());
    // Each attempt is the parent of what the upstream does for it.
    let seen = upstream.seen();
    for (seen, attempt) in seen.iter().zip(&attempts) {
        let field = seen.field("traceparent").unwrap();
        assert!(field.contains(&attempt.id()), "{field}");
    }
}

#[tokio::test]
async fn a_failover_is_an_attempt_at_another_endpoint() {
    let (one, other, collector) = (Upstream::start(), Upstream::start(), Collector::start());
    one.always(Reply::status(500, "broken"));
    let setup = collector.of(Setup::before_all(&[&one, &other]));
    let gateway = setup.start();
    assert_eq!(sampled(&gateway, &token(1), 1).await, 200);
    let spans = collector.until_traces(&[&trace(1)]).await;
    let mut attempts = of(&spans, &trace(1), "upstream");
    attempts.sort_by_key(|span| span.times());
    let ports: Vec<_> = attempts
        .iter()
        .map(|a| a.attribute("server.port"))
        .collect();
    let expected = [&one, &other].map(|server| server.address().port().to_string());
    assert_eq!(ports, expected);
}

#[tokio::test]
async fn a_failed_request_has_its_cause() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    upstream.always(Reply::status(500, "broken"));
    let gateway = collector.of(Setup::before(&upstream)).start();
    assert_eq!(sampled(&gateway, &token(1), 1).await, 502);
    let spans = collector.until_traces(&[&trace(1)]).await;
    let server = request(&spans, &trace(1));
    assert!(server.has_failed());
    assert_eq!(server.attribute("http.response.status_code"), "502");
    assert_eq!(server.attribute("error.type"), "502");
    assert_eq!(server.attribute("ordgate.reason"), "server_error");
    assert_eq!(of(&spans, &trace(1), "store").len(), 0);
}

/// The fetch belongs to the client that has caused it; another one that waits for it has
/// a link to that client's span.
#[tokio::test]
async fn a_collapsed_fetch_is_the_leaders() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gate = Gate::new();
    let body = crate::support::upstream::usual_body(BLOCK_CANONICAL);
    upstream.once(BLOCK_CANONICAL, Reply::json(body).behind(&gate));
    let gateway = collector.of(Setup::before(&upstream)).start();
    let mut clients = Vec::new();
    for number in [1, 2] {
        let mut client = gateway.client().await;
        let parent = parent(number, "01");
        let fields = [("traceparent", &*parent)];
        client.send_request("GET", BLOCK, &fields).await;
        upstream.until_requests(1).await;
        clients.push(client);
    }
    gateway.until_all_is_read().await;
    gate.open();
    for client in &mut clients {
        assert_eq!(client.answer("GET").await.status, 200);
    }
    let spans = collector.until_traces(&[&trace(1), &trace(2)]).await;
    let (leader, follower) = (request(&spans, &trace(1)), request(&spans, &trace(2)));
    assert_eq!(of(&spans, &trace(1), "upstream").len(), 1);
    assert_eq!(of(&spans, &trace(2), "").len(), 1, "{spans:#?}");
    assert_eq!(follower.links(), [leader.id()]);
    assert_eq!(follower.attribute("ordgate.collapsed"), "true");
    assert_eq!(leader.links(), Vec::<String>::new());
    assert_eq!(leader.attribute("ordgate.collapsed"), "");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_relayed_request_has_the_same_spans() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = collector.of(plain(&upstream)).start();
    let stored = "cache-control: max-age=60\r\n";
    upstream.once("/a?key=secret", Reply::with(200, stored, "body"));
    assert_eq!(sampled(&gateway, "/a?key=secret", 1).await, 200);
    // A request with a body is relayed alone.
    let value = parent(2, "01");
    let fields = [("traceparent", &*value), ("content-length", "0")];
    gateway.request("POST", "/b", &fields).await;
    let spans = collector.until_traces(&[&trace(1), &trace(2)]).await;
    for (number, method) in [(1, "GET"), (2, "POST")] {
        let id = trace(number);
        let server = request(&spans, &id);
        assert_eq!(server.attribute("http.request.method"), method);
        let attempt = one(&spans, &id, "upstream");
        assert_eq!(attempt.parent(), server.id());
        assert_eq!(attempt.attribute("http.request.method"), method);
        assert_eq!(one(&spans, &id, "queue").parent(), server.id());
        let seen = &upstream.seen()[number as usize - 1];
        let field = seen.field("traceparent").unwrap();
        assert_eq!(field, format!("00-{id}-{}-01", attempt.id()));
    }
    until("it is stored", || {
        of(&collector.spans(), &trace(1), "store").len() == 1
    })
    .await;
    assert!(!collector.bodies().concat().contains("secret"));
}

/// By OpenTelemetry's conventions, so that clients cannot make any number of span names.
#[tokio::test]
async fn an_unknown_method_is_other() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = collector.of(plain(&upstream)).start();
    let value = parent(1, "01");
    let fields = [("traceparent", &*value), ("content-length", "0")];
    gateway.request("FROB", "/a", &fields).await;
    assert_eq!(upstream.seen()[0].method(), "FROB");
    let spans = collector.until_traces(&[&trace(1)]).await;
    let server = request(&spans, &trace(1));
    assert_eq!(server.name(), "HTTP /{rest:*}");
    for span in [server, one(&spans, &trace(1), "upstream")] {
        assert_eq!(span.attribute("http.request.method"), "_OTHER");
        assert_eq!(span.attribute("http.request.method_original"), "FROB");
    }
}

#[tokio::test]
async fn a_client_that_disconnects_leaves_a_span() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gate = Gate::new();
    let body = crate::support::upstream::usual_body(BLOCK_CANONICAL);
    upstream.once(BLOCK_CANONICAL, Reply::json(body).behind(&gate));
    let gateway = collector.of(Setup::before(&upstream)).start();
    let mut client = gateway.client().await;
    let value = parent(1, "01");
    let fields = [("traceparent", &*value)];
    client.send_request("GET", BLOCK, &fields).await;
    upstream.until_requests(1).await;
    drop(client);
    let spans = collector.until_traces(&[&trace(1)]).await;
    let server = request(&spans, &trace(1));
    assert_eq!(server.attribute("error.type"), "client_disconnected");
    assert_eq!(server.attribute("http.response.status_code"), "");
    // The fetch goes on, in the same trace.
    gate.open();
    until("the fetch ends", || {
        of(&collector.spans(), &trace(1), "store").len() == 1
    })
    .await;
}
