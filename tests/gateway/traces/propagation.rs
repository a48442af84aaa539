//! What of a request's trace context reaches the upstream, the log and error documents.

use super::{SPAN, parent, trace};
use crate::respect::plain;
use crate::support::{Gateway, Process, Upstream, token};

/// On a typed route, without a collector. The forms stand in `trace`.
#[tokio::test]
async fn traceparent_is_passed_on_by_the_recommendation() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let sampled = parent(1, "01");
    let future = format!("cc-{}-{SPAN}-01-more", trace(1));
    let rows: [(&[&str], bool); 4] = [
        (&[&sampled], true),
        (&[&future], true),
        (&[&sampled, &sampled], false),
        (&["nonsense"], false),
    ];
    for (number, (values, passes)) in rows.into_iter().enumerate() {
        let fields: Vec<_> = values.iter().map(|value| ("traceparent", *value)).collect();
        gateway.request("GET", &token(number), &fields).await;
        let seen = upstream.seen().pop().unwrap().field("traceparent");
        assert_eq!(seen.as_ref(), passes.then_some(&sampled), "{values:?}");
    }
}

/// A route that passes everything on does not touch the fields of a trace that is not
/// recorded.
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
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.toml");
    let text = "builtin_routes = false\n[log]\nlevel = \"info\"\nformat = \"json\"\n\
                [log.access]\nformat = \"log\"\n\
                [[route]]\nname = \"token\"\npath = \"/ordinals/v1/brc-20/tokens/{ticker}\"\n\
                params.ticker = { type = \"ticker\" }\n\
                cache = { mode = \"override\", times = { 200 = \"1h\" } }\n";
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    let (process, public, _) = Process::before(&upstream, &["--config", &path], &[]);
    let mut client = crate::support::Client::connect(public).await;
    let sampled = parent(3, "01");
    let fields = [("traceparent", &*sampled)];
    let (fetched, failed) = (token(1), token(2));
    upstream.once(&failed, crate::support::Reply::status(500, "broken"));
    // A miss, a hit, a refusal, a failure, and a hit without a trace.
    for target in [&*fetched, &fetched, "/nowhere", &failed] {
        client.request("GET", target, &fields).await;
    }
    client.get(&fetched).await;
    drop(client);
    process.signal(rustix::process::Signal::TERM);
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    let access = lines(&left.errors, "ordgate::access");
    let ids: Vec<_> = access.iter().map(|line| line["trace_id"].clone()).collect();
    assert_eq!(ids.len(), 5, "{}", left.errors);
    assert!(ids[..4].iter().all(|id| *id == trace(3)), "{ids:?}");
    assert!(ids[4].is_null(), "{ids:?}");
    let failures = lines(&left.errors, "ordgate::upstream::endpoint");
    let of_trace = |line: &&serde_json::Value| line["trace_id"] == trace(3);
    assert_eq!(
        failures.iter().filter(of_trace).count(),
        1,
        "{}",
        left.errors
    );
}
