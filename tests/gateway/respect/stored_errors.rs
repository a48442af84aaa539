//! Stored responses that are no 200: they are neither validated nor freshened, and an
//! error is not served in place of another.

use super::{did, is_hit, manual, not_modified, ok, plain};
use crate::support::respect::{all_with_stale, typed};
use crate::support::upstream::Seen;
use crate::support::{Gate, Reply, Setup, Upstream, until};

const DATE: &str = "Sat, 01 Nov 2025 00:00:00 GMT";
const TAG: &str = "etag: \"tip\"";
const NO_CACHE: &str = "cache-control: public, no-cache, must-revalidate";
const JSON: &str = "content-type: application/json; charset=utf-8";

fn error(status: u16, fields: &[&str]) -> Reply {
    Reply::with(status, &super::lines(fields), "{\"error\":\"it\"}")
}

/// An origin whose tags are of its tip and not of the resource: a request with the
/// tip's tag, or its date, gets 304 whatever it is for.
fn by_tip(seen: &Seen, fields: &[&str]) -> Reply {
    let has = |name: &str, text: &str| seen.field(name).is_some_and(|value| value.contains(text));
    match has("if-none-match", "\"tip\"") || has("if-modified-since", DATE) {
        true => not_modified(fields),
        false => ok(fields, "{\"well\":1}"),
    }
}

#[tokio::test]
async fn a_stored_error_is_fetched_again_without_its_validators() {
    let modified = format!("last-modified: {DATE}");
    for validators in [&[TAG][..], &[&modified], &[TAG, &modified]] {
        for status in [301, 404, 500, 502, 503] {
            let upstream = Upstream::start();
            let gateway = manual(&upstream);
            let fields = [&[NO_CACHE, JSON], validators].concat();
            upstream.once("/v", error(status, &fields));
            let own: Vec<_> = fields.iter().map(|&field| field.to_owned()).collect();
            upstream.usually(move |seen| {
                let fields: Vec<_> = own.iter().map(|field| &**field).collect();
                by_tip(seen, &fields)
            });
            let first = gateway.get("/v").await;
            assert_eq!(first.status, status);
            assert!(did(&first).ends_with("stored"), "{first:?}");
            let what = format!("{status} {validators:?}");
            for (method, outcome) in [
                ("GET", "fwd=stale; fwd-status=200; stored"),
                ("GET", "fwd=stale; fwd-status=304; stored"),
                ("HEAD", "fwd=stale; fwd-status=304; stored"),
            ] {
                let answer = gateway.request(method, "/v", &[]).await;
                assert_eq!((answer.status, &*did(&answer)), (200, outcome), "{what}");
            }
            let conditions: Vec<_> = upstream.seen().iter().map(is_conditional).collect();
            assert_eq!(conditions, [false, false, true, true], "{what}");
        }
    }
}

fn is_conditional(seen: &Seen) -> bool {
    seen.field("if-none-match").is_some() || seen.field("if-modified-since").is_some()
}

/// The client's own condition is evaluated on what the origin answers.
#[tokio::test]
async fn a_client_with_the_tag_of_an_error_gets_the_new_response() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.once("/v", error(500, &[NO_CACHE, TAG]));
    upstream.usually(|seen| by_tip(seen, &["cache-control: max-age=10", TAG]));
    gateway.get("/v").await;
    let other = [("if-none-match", "\"other\"")];
    let answer = gateway.request("GET", "/v", &other).await;
    assert_eq!((answer.status, answer.text()), (200, "{\"well\":1}"));
    assert!(!is_conditional(&upstream.seen()[1]));
    let same = [("if-none-match", "\"tip\"")];
    let answer = gateway.request("GET", "/v", &same).await;
    assert_eq!((answer.status, &*did(&answer)), (304, "hit; ttl=10"));
}

#[tokio::test]
async fn a_typed_route_validates_no_stored_404() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let fields = [NO_CACHE, JSON, TAG];
    upstream.once("/tokens/ordi", error(404, &fields));
    upstream.usually(move |seen| by_tip(seen, &fields));
    assert_eq!(gateway.get("/tokens/ordi").await.status, 404);
    for outcome in [200, 304, 304] {
        let answer = gateway.get("/tokens/ordi").await;
        let outcome = format!("fwd=stale; fwd-status={outcome}; stored");
        assert_eq!((answer.status, did(&answer)), (200, outcome));
        assert_eq!(answer.text(), "{\"well\":1}");
    }
}

#[tokio::test]
async fn a_refresh_fetches_a_stored_error_again() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = ["cache-control: max-age=10, stale-while-revalidate=20", TAG];
    upstream.once("/v", error(404, &fields));
    upstream.usually(move |seen| by_tip(seen, &fields));
    gateway.get("/v").await;
    gateway.advance(15_000);
    let stale = gateway.get("/v").await;
    assert_eq!((stale.status, &*did(&stale)), (404, "hit; ttl=-5"));
    upstream.until_requests(2).await;
    assert!(!is_conditional(&upstream.seen()[1]));
    let mut answer = gateway.get("/v").await;
    for _attempt in 0..2000 {
        if did(&answer) == "hit; ttl=10" {
            break;
        }
        answer = gateway.get("/v").await;
    }
    assert_eq!(did(&answer), "hit; ttl=10");
    assert_eq!((answer.status, upstream.count()), (200, 2));
}

/// Nor do other variants of the target lend the validators of an error, while those
/// of a 200 go up and may replace it.
#[tokio::test]
async fn only_a_200_among_the_variants_lends_its_validators() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = ["cache-control: max-age=10", "vary: accept", TAG];
    let get = async |accept: &'static str| {
        let accept = [("accept", accept)];
        gateway.request("GET", "/v", &accept).await
    };
    upstream.once("/v", error(404, &fields));
    upstream.usually(move |seen| by_tip(seen, &fields));
    assert_eq!(get("a").await.status, 404);
    let second = get("b").await;
    assert_eq!(did(&second), "fwd=vary-miss; fwd-status=200; stored");
    assert!(!is_conditional(&upstream.seen()[1]));
    let hit = get("a").await;
    assert_eq!((hit.status, &*did(&hit)), (404, "hit; ttl=10"));
    gateway.advance(10_000);
    let third = get("a").await;
    assert_eq!((third.status, third.text()), (200, "{\"well\":1}"));
    assert_eq!(did(&third), "fwd=stale; fwd-status=304; stored");
    for accept in ["a", "b"] {
        let hit = get(accept).await;
        assert_eq!((hit.status, &*did(&hit)), (200, "hit; ttl=10"), "{accept}");
    }
}

/// A 304 without a validator is about the 200 that was validated, not about an error
/// that is selected.
#[tokio::test]
async fn a_304_that_names_nothing_is_not_about_an_error() {
    for not_named in [&["x-f: 1"][..], &["etag: \"unheard-of\""]] {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        let fields = ["cache-control: max-age=10", "vary: accept", TAG];
        let (a, b) = ([("accept", "a")], [("accept", "b")]);
        upstream.once("/v", error(404, &fields));
        upstream.once("/v", ok(&fields, "well"));
        gateway.request("GET", "/v", &a).await;
        gateway.request("GET", "/v", &b).await;
        gateway.advance(10_000);
        upstream.once("/v", not_modified(not_named));
        upstream.always(ok(&fields, "well"));
        let answer = gateway.request("GET", "/v", &a).await;
        assert_eq!(
            (answer.status, answer.text()),
            (200, "well"),
            "{not_named:?}"
        );
    }
}

/// The 304 is about the response that was validated, and not about an error that
/// has replaced it meanwhile.
#[tokio::test]
async fn a_304_does_not_freshen_an_error_that_came_meanwhile() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = ["cache-control: max-age=10", TAG];
    upstream.once("/v", ok(&fields, "first"));
    gateway.get("/v").await;
    gateway.advance(10_000);
    let gate = Gate::new();
    upstream.once("/v", not_modified(&fields).behind(&gate));
    let mut first = gateway.start_get("/v").await;
    upstream.until_requests(2).await;
    upstream.once("/v", error(404, &fields));
    let fresh = [("cache-control", "no-cache")];
    assert_eq!(gateway.request("GET", "/v", &fresh).await.status, 404);
    upstream.once("/v", ok(&fields, "second"));
    gate.open();
    let answer = first.answer("GET").await;
    assert_eq!((answer.status, answer.text()), (200, "second"));
    let seen = upstream.seen();
    let conditions: Vec<_> = seen.iter().map(is_conditional).collect();
    assert_eq!(conditions, [false, true, true, false]);
}

#[tokio::test]
async fn the_200_to_a_head_makes_another_status_stale() {
    let head = "HTTP/1.1 200 OK\r\ncache-control: max-age=600\r\ncontent-type: text/x\r\n";
    for (framing, tag) in [
        ("transfer-encoding: chunked", ""),
        ("content-length: 14", TAG),
    ] {
        for status in [301, 404, 500] {
            for stale in [true, false] {
                let upstream = Upstream::start();
                let gateway = manual(&upstream);
                let what = format!("{status} {framing} {stale}");
                let stored = ["cache-control: max-age=100", tag];
                let stored = &stored[..1 + usize::from(!tag.is_empty())];
                upstream.once("/v", error(status, stored));
                gateway.get("/v").await;
                if stale {
                    gateway.advance(100_000);
                }
                let tag = &super::lines(&stored[1..]);
                upstream.once("/v", Reply::raw(format!("{head}{tag}{framing}\r\n\r\n")));
                let fields = [("cache-control", "no-cache")];
                let asked = gateway.request("HEAD", "/v", &fields).await;
                assert_eq!(asked.status, 200, "{what}");
                upstream.once("/v", ok(&["cache-control: max-age=5"], "well"));
                let answer = gateway.get("/v").await;
                assert_eq!((answer.status, answer.text()), (200, "well"), "{what}");
                assert_eq!(did(&answer), "fwd=stale; fwd-status=200; stored", "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_stored_server_error_is_not_served_in_place_of_a_failure() {
    for (status, is_served) in [(404, true), (410, true), (500, false), (503, false)] {
        for control in ["max-age=10, stale-if-error=60", "max-age=10"] {
            let upstream = Upstream::start();
            let route = all_with_stale("60s");
            let gateway = Setup::before(&upstream).config(&route).manual().start();
            let control = format!("cache-control: {control}");
            upstream.once("/v", error(status, &[&control]));
            gateway.get("/v").await;
            gateway.advance(15_000);
            let what = format!("{status} {control}");

            upstream.once("/v", Reply::with(502, "", "sorry"));
            let failed = gateway.get("/v").await;
            upstream.always(Reply::nothing().close());
            let closed = gateway.get("/v").await;
            if is_served {
                for answer in [failed, closed] {
                    assert_eq!(answer.status, status, "{what}");
                    assert!(did(&answer).contains("stale-if-error"), "{what}");
                }
            } else {
                assert_eq!((failed.status, failed.text()), (502, "sorry"), "{what}");
                assert!(matches!(closed.status, 502 | 504), "{what}: {closed:?}");
                assert!(closed.must("proxy-status").starts_with("ordgate; error="));
                closed.problem();
            }
        }
    }
}

#[tokio::test]
async fn a_stored_server_error_is_served_while_it_is_fetched_again() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let fields = ["cache-control: max-age=10, stale-while-revalidate=20"];
    upstream.once("/v", error(503, &fields));
    gateway.get("/v").await;
    gateway.advance(15_000);
    upstream.always(ok(&fields, "well"));
    let stale = gateway.get("/v").await;
    assert_eq!((stale.status, &*did(&stale)), (503, "hit; ttl=-5"));
    until("it is fetched again", || upstream.count() == 2).await;
    let mut answer = gateway.get("/v").await;
    for _attempt in 0..2000 {
        if answer.status == 200 {
            break;
        }
        answer = gateway.get("/v").await;
    }
    assert!(is_hit(&answer), "{answer:?}");
}
