//! Fields that `private` or `no-cache` names: they are for the client whose request
//! the origin answered, and for no other (RFC 9111 §5.2.2.4, §5.2.2.7).

use super::{did, is_hit, manual, not_modified, ok};
use crate::support::respect::typed;
use crate::support::{Answer, Client, Gate, Reply, Upstream};

const DIRECTIVES: [&str; 2] = ["private", "no-cache"];

fn control(directive: &str) -> String {
    format!("cache-control: max-age=60, {directive}=\"Set-Cookie, x-user, content-length\"")
}

/// The values of the named fields, and of one that is for all.
fn values(answer: &Answer) -> [Vec<&str>; 3] {
    ["set-cookie", "x-user", "x-all"].map(|name| answer.all(name))
}

const FIELDS: [&str; 4] = [
    "set-cookie: a=1",
    "set-cookie: b=2",
    "x-user: joe",
    "x-all: 1",
];

fn own() -> [Vec<&'static str>; 3] {
    [vec!["a=1", "b=2"], vec!["joe"], vec!["1"]]
}

fn of_others() -> [Vec<&'static str>; 3] {
    [vec![], vec![], vec!["1"]]
}

#[tokio::test]
async fn named_fields_are_for_the_client_whose_request_was_answered() {
    for directive in DIRECTIVES {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        let control = control(directive);
        let fields = [&[&*control], &FIELDS[..]].concat();
        upstream.always(ok(&fields, "body"));
        let first = gateway.get("/v").await;
        assert_eq!(did(&first), "fwd=uri-miss; fwd-status=200; stored");
        assert_eq!(values(&first), own(), "{directive}");
        assert_eq!(first.all("date").len(), 1);
        let hit = gateway.get("/v").await;
        assert!(is_hit(&hit), "{hit:?}");
        assert_eq!(values(&hit), of_others(), "{directive}");
        // A part of it, and what a HEAD or a refused storing passes on.
        let part = [("range", "bytes=0-1"), ("cache-control", "no-cache")];
        let part = gateway.request("GET", "/v", &part).await;
        assert_eq!((part.status, values(&part)), (206, own()), "{directive}");
        let fresh = [("cache-control", "no-store, no-cache")];
        let passed = gateway.request("GET", "/v", &fresh).await;
        assert_eq!(values(&passed), own(), "{directive}");
        assert_eq!(values(&gateway.get("/v").await), of_others(), "{directive}");
        assert_eq!(upstream.count(), 3);
    }
}

/// The answer, whose body comes in two parts.
async fn first_part(client: &mut Client) -> String {
    let mut came = Vec::new();
    while !String::from_utf8_lossy(&came).contains("half") {
        let more = client.some(1).await;
        assert!(!more.is_empty(), "{came:?}");
        came.extend(more);
    }
    String::from_utf8_lossy(&came).to_ascii_lowercase()
}

#[tokio::test]
async fn named_fields_of_an_answer_in_progress_are_for_the_leader() {
    for directive in DIRECTIVES {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        let (head, gate) = (Gate::new(), Gate::new());
        let control = control(directive);
        let fields = super::lines(&[&[&*control], &FIELDS[..]].concat());
        let reply = Reply::raw(format!(
            "HTTP/1.1 200 OK\r\n{fields}content-length: 8\r\n\r\nhalf"
        ));
        upstream.once("/v", reply.behind(&head).then(&gate, "rest"));
        let mut leader = gateway.start_get("/v").await;
        upstream.until_requests(1).await;
        let mut waiting = gateway.start_get("/v").await;
        gateway.until_all_is_read().await;
        head.open();
        let came = first_part(&mut leader).await;
        for text in ["a=1", "b=2", "joe", "x-all"] {
            assert_eq!(came.matches(text).count(), 1, "{directive} {text}: {came}");
        }
        assert!(!came.contains("collapsed"), "{came}");
        let mut late = gateway.start_get("/v").await;
        for follower in [&mut waiting, &mut late] {
            let came = first_part(follower).await;
            assert!(
                came.contains("collapsed") && came.contains("x-all"),
                "{came}"
            );
            for text in ["a=1", "b=2", "joe"] {
                assert!(!came.contains(text), "{directive} {text}: {came}");
            }
        }
        gate.open();
        let hit = gateway.get("/v").await;
        assert_eq!((hit.text(), values(&hit)), ("halfrest", of_others()));
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn followers_get_no_named_fields() {
    for directive in DIRECTIVES {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        let gate = Gate::new();
        let control = control(directive);
        let fields = [&[&*control], &FIELDS[..]].concat();
        upstream.once("/v", ok(&fields, "body").behind(&gate));
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(gateway.start_get("/v").await);
            upstream.until_requests(1).await;
        }
        gateway.until_all_is_read().await;
        gate.open();
        for (number, client) in clients.iter_mut().enumerate() {
            let answer = client.answer("GET").await;
            let expected = if number == 0 { own() } else { of_others() };
            assert_eq!(values(&answer), expected, "{directive} {number}");
        }
        assert_eq!(upstream.count(), 1);
    }
}

/// By what the 304 has: validators and directives, only the directives, neither.
#[tokio::test]
async fn named_fields_of_a_304_are_for_the_client_that_it_answers() {
    let tag = "etag: \"one\"";
    for directive in DIRECTIVES {
        let control = control(directive);
        for more in [&[tag, &*control][..], &[tag], &[&*control], &[]] {
            let upstream = Upstream::start();
            let gateway = manual(&upstream);
            upstream.once("/v", ok(&[&[&*control, tag], &FIELDS[..]].concat(), "body"));
            gateway.get("/v").await;
            gateway.advance(60_000);
            let newer = ["x-user: ann", "set-cookie: c=3", "content-length: 9"];
            upstream.once("/v", not_modified(&[&newer, more].concat()));
            let answer = gateway.get("/v").await;
            let what = format!("{directive} {more:?}");
            assert_eq!((answer.status, answer.text()), (200, "body"), "{what}");
            assert_eq!(
                values(&answer),
                [vec!["c=3"], vec!["ann"], vec!["1"]],
                "{what}"
            );
            assert_eq!(answer.must("content-length"), "4", "{what}");
            upstream.always(not_modified(&[tag]));
            let next = gateway.get("/v").await;
            assert_eq!(values(&next), of_others(), "{what}");
        }
    }
}

/// What a 304 names from now on was stored for all before, but by another client's
/// answer.
#[tokio::test]
async fn a_304_may_name_fields() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let tag = "etag: \"one\"";
    let fields = ["cache-control: max-age=10", tag, "x-user: joe", "x-all: 1"];
    upstream.once("/v", ok(&fields, "body"));
    gateway.get("/v").await;
    gateway.advance(10_000);
    let control = control("private");
    upstream.once("/v", not_modified(&[&control, tag]));
    for outcome in ["fwd=stale; fwd-status=304; stored", "hit; ttl=60"] {
        let answer = gateway.get("/v").await;
        assert_eq!(did(&answer), outcome);
        assert_eq!(values(&answer), of_others(), "{outcome}");
    }
}

#[tokio::test]
async fn cookies_of_a_304_are_for_the_client_that_it_answers() {
    // By what the 304 says: nothing of its own, that it is for everyone, or that its
    // cookies are named.
    for (control, own, later) in [
        (None, vec!["old=1", "new=2"], vec!["old=1"]),
        (Some("max-age=60"), vec!["new=2"], vec!["new=2"]),
        (
            Some("max-age=60, private=\"set-cookie\""),
            vec!["new=2"],
            vec![],
        ),
    ] {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        let tag = "etag: \"one\"";
        let first = ["cache-control: max-age=10", tag, "set-cookie: old=1"];
        upstream.once("/v", ok(&first, "body"));
        gateway.get("/v").await;
        gateway.advance(10_000);
        let line = control.map(|control| format!("cache-control: {control}"));
        let newer = [tag, "set-cookie: new=2"];
        let newer: Vec<_> = newer.into_iter().chain(line.as_deref()).collect();
        upstream.once("/v", not_modified(&newer));
        let asked = gateway.get("/v").await;
        assert_eq!(asked.all("set-cookie"), own, "{control:?}");
        let hit = gateway.get("/v").await;
        assert!(is_hit(&hit), "{control:?}");
        assert_eq!(hit.all("set-cookie"), later, "{control:?}");
    }
}

/// A named field that ordgate makes itself is there once.
#[tokio::test]
async fn named_fields_of_the_message_are_not_doubled() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let control = "cache-control: max-age=60, no-cache=\"content-length, via, x-hop\"";
    let fields = [control, "via: 1.1 far", "connection: x-hop", "x-hop: 1"];
    upstream.once("/v", ok(&fields, "body"));
    let answer = gateway.get("/v").await;
    assert_eq!(answer.text(), "body");
    assert_eq!(answer.all("via"), ["1.1 far", "1.1 ordgate"]);
    assert_eq!(answer.all("content-length"), ["4"]);
    assert_eq!(answer.field("x-hop"), None);
    let hit = gateway.get("/v").await;
    assert!(is_hit(&hit), "{hit:?}");
    assert_eq!(hit.field("via"), None);
}

#[tokio::test]
async fn a_typed_route_gives_no_client_a_named_field_that_it_does_not_pass_on() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let control = "cache-control: max-age=60, private=\"set-cookie, x-user, content-language\"";
    let json = "content-type: application/json";
    let fields = [&[control, json, "content-language: de"], &FIELDS[..]].concat();
    upstream.once("/tokens/ordi", ok(&fields, "{}"));
    for language in [Some("de"), None] {
        let answer = gateway.get("/tokens/ordi").await;
        assert_eq!(values(&answer), [vec![], vec![], vec![]] as [Vec<&str>; 3]);
        assert_eq!(answer.field("content-language"), language);
    }
}
