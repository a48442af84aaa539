//! What of a request's trace context reaches the upstream, the log and error documents.

use super::{SPAN, parent, trace};
use crate::respect::plain;
use crate::support::{Collector, Gateway, Process, Setup, Upstream, token};

/// What the upstream gets on a typed route for each form, without a collector.
#[tokio::test]
async fn traceparent_is_passed_on_by_the_recommendation() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let (sampled, plain) = (parent(1, "01"), parent(1, "00"));
    let future = format!("cc-{}-{SPAN}-01-more", trace(1));
    let unknown_flags = format!("00-{}-{SPAN}-ff", trace(1));
    let random = parent(1, "03");
    let rows: [(&[&str], Option<&str>); 9] = [
        (&[&sampled], Some(&sampled)),
        (&[&plain], Some(&plain)),
        (&[&future], Some(&sampled)),
        (&[&unknown_flags], Some(&random)),
        (&[], None),
        (&[&sampled, &sampled], None),
        (&[&format!("{sampled}-00")], None),
        (&["nonsense"], None),
        (&[&format!("00-{}-{SPAN}-01", "0".repeat(32))], None),
    ];
    for (number, (values, expected)) in rows.into_iter().enumerate() {
        let fields: Vec<_> = values.iter().map(|value| ("traceparent", *value)).collect();
        let target = token(number);
        assert_eq!(gateway.request("GET", &target, &fields).await.status, 200);
        let seen = upstream.seen();
        let seen = seen.last().unwrap();
        assert_eq!(seen.target(), target);
        assert_eq!(seen.field("traceparent").as_deref(), expected, "{values:?}");
    }
}

/// A `tracestate` is free text: where the answer is for other clients too, it does not
/// reach the upstream.
#[tokio::test]
async fn tracestate_goes_only_with_requests_for_one_client() {
    let upstream = Upstream::start();
    let own = r#"
        [[route]]
        name = "own"
        path = "/own/{name}"
        params.name = { type = "string" }
        cache = { mode = "off" }
    "#;
    let gateway = Gateway::with(&upstream, own);
    let long: Vec<_> = (0..40)
        .map(|n| format!("k{n}={}", "v".repeat(20)))
        .collect();
    let fitting = &long[..20].join(",");
    let sampled = parent(1, "01");
    for (state, expected) in [
        ("a=1, b=2", Some("a=1,b=2")),
        ("a=1,B", None),
        (&long[..32].join(","), Some(&**fitting)),
    ] {
        let fields = [("traceparent", &*sampled), ("tracestate", state)];
        let answer = gateway.request("GET", "/own/x", &fields).await;
        assert_eq!(answer.status, 200);
        let seen = upstream.seen();
        let seen = seen.last().unwrap();
        assert_eq!(seen.field("tracestate").as_deref(), expected, "{state}");
        assert_eq!(seen.field("traceparent").as_deref(), Some(&*sampled));
    }
    let fields = [("tracestate", "a=1")];
    gateway.request("GET", "/own/y", &fields).await;
    let without_parent = upstream.seen().last().unwrap().field("tracestate");
    assert_eq!(without_parent, None);
}

#[tokio::test]
async fn the_upstream_gets_no_tracestate_for_a_stored_answer() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let sampled = parent(1, "01");
    let fields = [("traceparent", &*sampled), ("tracestate", "a=<script>")];
    assert_eq!(gateway.request("GET", &token(1), &fields).await.status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.field("traceparent"), Some(sampled));
    assert_eq!(seen.field("tracestate"), None);
}

/// A route that passes everything on does not touch the fields of a trace that is not
/// recorded; in a recorded one, the upstream's parent is ordgate's span.
#[tokio::test]
async fn a_plain_route_passes_both_fields_on() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let future = format!("cc-{}-{SPAN}-01-more", trace(1));
    for value in [&*future, "nonsense"] {
        let fields = [("traceparent", value), ("tracestate", "not valid")];
        gateway.request("GET", "/a", &fields).await;
        let seen = upstream.seen();
        let seen = seen.last().unwrap();
        assert_eq!(seen.field("traceparent").as_deref(), Some(value));
        assert_eq!(seen.field("tracestate").as_deref(), Some("not valid"));
    }
}

/// Where a trace begins here, the client's `tracestate` would belong to another one.
#[tokio::test]
async fn a_trace_that_begins_here_has_no_tracestate() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let setup = collector.of(plain(&upstream));
    let gateway = setup.config("telemetry.sample = 1.0").start();
    for fields in [
        &[("tracestate", "a=1")][..],
        &[("traceparent", "nonsense"), ("tracestate", "a=1")],
    ] {
        gateway.request("GET", "/a", fields).await;
        let seen = upstream.seen();
        let seen = seen.last().unwrap();
        let parent = seen.field("traceparent").unwrap();
        assert!(
            parent.starts_with("00-") && parent.ends_with("-03"),
            "{parent}"
        );
        assert_eq!(seen.field("tracestate"), None, "{fields:?}");
    }
    let sampled = parent(1, "01");
    let fields = [("traceparent", &*sampled), ("tracestate", "a=1")];
    gateway.request("GET", "/a", &fields).await;
    let state = upstream.seen().last().unwrap().field("tracestate");
    assert_eq!(state.as_deref(), Some("a=1"), "a trace that goes on");
}

#[tokio::test]
async fn error_documents_have_the_trace_id() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    upstream.always(crate::support::Reply::status(500, "broken"));
    let sampled = parent(7, "00");
    let fields = [("traceparent", &*sampled)];
    // Refused at once, without a route, and after the upstream has failed.
    for (target, status) in [
        ("/runes/v1/blocks/x/activity", 400),
        ("/nowhere", 404),
        (&*token(1), 502),
    ] {
        let answer = gateway.request("GET", target, &fields).await;
        assert_eq!(answer.status, status, "{target}");
        assert_eq!(answer.json()["trace_id"], trace(7), "{target}");
        let answer = gateway.get(target).await;
        assert_eq!(answer.json().get("trace_id"), None, "{target}");
    }
}

/// The lines of a binary's log, by their target.
fn lines(errors: &str, target: &str) -> Vec<serde_json::Value> {
    let all = errors
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    all.filter(|line: &serde_json::Value| line["target"] == target)
        .collect()
}

#[tokio::test]
async fn the_logs_have_the_trace_id() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.toml");
    let text = "[log]\nlevel = \"info,ordgate::upstream=debug\"\nformat = \"json\"\n\
                [log.access]\nenabled = true\n[telemetry]\nsample = 1.0\n\
                [[route]]\nname = \"token\"\npath = \"/ordinals/v1/brc-20/tokens/{ticker}\"\n\
                params.ticker = { type = \"ticker\" }\n\
                cache = { mode = \"override\", times = { 200 = \"1h\" } }\n";
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    let variables = collector.variables();
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    let (process, public, _) = Process::before(&upstream, &["--config", &path], &variables);
    let mut client = crate::support::Client::connect(public).await;
    let sampled = parent(3, "01");
    let fields = [("traceparent", &*sampled)];
    let (fetched, failed, own) = (token(1), token(2), token(3));
    upstream.once(&failed, crate::support::Reply::status(500, "broken"));
    // A miss, a hit, a refusal, a failure, and a trace of ordgate's own.
    for target in [&*fetched, &fetched, "/nowhere", &failed] {
        client.request("GET", target, &fields).await;
    }
    client.get(&own).await;
    client.get(&own).await;
    drop(client);
    process.signal(rustix::process::Signal::TERM);
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    let access = lines(&left.errors, "ordgate::access");
    let ids: Vec<_> = access.iter().map(|line| line["trace_id"].clone()).collect();
    assert_eq!(ids.len(), 6, "{}", left.errors);
    assert!(ids[..4].iter().all(|id| *id == trace(3)), "{ids:?}");
    assert_eq!(ids[4].as_str().unwrap().len(), 32, "{ids:?}");
    assert!(ids[5].is_null(), "a hit without traceparent: {ids:?}");
    let failures = lines(&left.errors, "ordgate::upstream::failure");
    let of_trace = |line: &&serde_json::Value| line["trace_id"] == trace(3);
    assert_eq!(
        failures.iter().filter(of_trace).count(),
        1,
        "{}",
        left.errors
    );
}

/// Nobody can make the upstream believe that a trace is recorded which is not, nor is a
/// recorded one passed on as the client's.
#[tokio::test]
async fn the_upstream_belongs_to_the_recorded_span() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    let gateway = collector.of(Setup::before(&upstream)).start();
    let (sampled, plain) = (parent(1, "01"), parent(2, "00"));
    gateway
        .request("GET", &token(1), &[("traceparent", &sampled)])
        .await;
    gateway
        .request("GET", &token(2), &[("traceparent", &plain)])
        .await;
    gateway.get(&token(3)).await;
    let seen = upstream.seen();
    let spans = collector.until_traces(&[&trace(1)]).await;
    let attempt = super::one(&spans, &trace(1), "upstream");
    let expected = format!("00-{}-{}-01", trace(1), attempt.id());
    assert_eq!(seen[0].field("traceparent"), Some(expected));
    assert_eq!(seen[1].field("traceparent"), Some(plain));
    assert_eq!(seen[2].field("traceparent"), None);
}
