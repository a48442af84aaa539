//! Keys, limits, faults and counts, without sockets.

use std::time::Duration;

use http::{Request, StatusCode};
use tokio::time::Instant;

use super::{Fault, FaultKind};
use crate::sandbox::{Answer, Api, Sandbox, Settings, State};

fn receive(
    sandbox: &Sandbox,
    target: &str,
    key: Option<&str>,
    now: Instant,
) -> (Option<Answer>, Duration) {
    let mut request = Request::get(target);
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let (request, ()) = request.body(()).unwrap().into_parts();
    let State { model, provider } = &mut *sandbox.state();
    provider.receive(&sandbox.settings, model, Api::Both, &request, now)
}

fn ask(sandbox: &Sandbox, target: &str, key: Option<&str>, now: Instant) -> Option<Answer> {
    receive(sandbox, target, key, now).0
}

fn status(sandbox: &Sandbox, target: &str) -> u16 {
    let answer = ask(sandbox, target, None, Instant::now());
    answer.map_or(0, |answer| answer.status.as_u16())
}

#[test]
fn only_a_known_key_passes() {
    for (required, key, status) in [
        (None, Some("bogus"), 200),
        (None, None, 200),
        (Some("k"), None, 401),
        (Some("k"), Some("other"), 401),
        (Some("k"), Some("k"), 200),
        (Some("k1, k2"), Some("k2"), 200),
    ] {
        let sandbox = Sandbox::new(Settings {
            require_key: required.map(str::to_owned),
            ..Settings::default()
        });
        let answer = ask(&sandbox, "/runes/v1/", key, Instant::now()).unwrap();
        assert_eq!(answer.status, status, "{required:?} {key:?}");
    }
}

#[test]
fn the_limit_holds_over_every_minute_for_each_key() {
    let sandbox = Sandbox::new(Settings {
        require_key: Some("k1,k2".to_owned()),
        requests_per_minute: Some(2),
        ..Settings::default()
    });
    let start = Instant::now();
    for (at, key, status, remaining, reset) in [
        (0, "k1", 200, "1", "60"),
        (30_500, "k1", 200, "0", "30"),
        (59_999, "k1", 429, "0", "1"),
        (59_999, "k2", 200, "1", "60"),
        (60_000, "k1", 200, "0", "31"),
        (60_001, "k1", 429, "0", "31"),
    ] {
        let now = start + Duration::from_millis(at);
        let answer = ask(&sandbox, "/runes/v1/", Some(key), now).unwrap();
        assert_eq!(answer.status, status, "at {at}");
        assert_eq!(answer.headers["ratelimit-remaining"], remaining, "at {at}");
        assert_eq!(answer.headers["ratelimit-reset"], reset, "at {at}");
        let wait = answer.headers.get("retry-after");
        assert_eq!(
            wait.is_some_and(|wait| wait == reset),
            status == 429,
            "at {at}"
        );
    }
    let counts = sandbox.counts();
    assert_eq!(
        (counts.total, counts.client_errors, counts.busiest_minute),
        (6, 2, 5)
    );
}

#[test]
fn faults_apply_in_order_and_as_often_as_said() {
    let sandbox = Sandbox::new(Settings::default());
    let gone = FaultKind::Status(StatusCode::GONE);
    let mut first = Fault::once(gone);
    first.path = Some("/runes".to_owned());
    sandbox.fault(first);
    sandbox.fault(Fault::once(FaultKind::Close).times(2));
    for (target, expected) in [
        ("/ordinals/v1/", 0),
        ("/runes/v1/", 410),
        ("/runes/v1/", 0),
        ("/runes/v1/", 200),
    ] {
        assert_eq!(status(&sandbox, target), expected, "{target}");
    }
    sandbox.fault(Fault {
        chance: 0.25,
        ..Fault::once(FaultKind::Close).times(u32::MAX)
    });
    let closed = (0..400).filter(|_| status(&sandbox, "/nope") == 0).count();
    assert!((60..140).contains(&closed), "{closed}");
    sandbox.clear_faults();
    sandbox.fault(Fault::once(FaultKind::Status(
        StatusCode::TOO_MANY_REQUESTS,
    )));
    let answer = ask(&sandbox, "/runes/v1/", None, Instant::now()).unwrap();
    assert_eq!(answer.headers["retry-after"], "1");
    sandbox.fault(Fault::once(FaultKind::Status(
        StatusCode::INTERNAL_SERVER_ERROR,
    )));
    let answer = ask(&sandbox, "/runes/v1/", None, Instant::now()).unwrap();
    assert!(
        answer
            .body
            .starts_with(b"{\"statusCode\":500,\"code\":\"57014\"")
    );
    assert_eq!(status(&sandbox, "/runes/v1/"), 200);
}

#[test]
fn latency_is_within_its_range_and_stalls_come_on_top() {
    let (least, most) = (Duration::from_millis(50), Duration::from_millis(400));
    let sandbox = Sandbox::new(Settings {
        latency: least..=most,
        ..Settings::default()
    });
    let wait = || receive(&sandbox, "/runes/v1/", None, Instant::now()).1;
    let mut waits: Vec<_> = (0..1_000).map(|_| wait()).collect();
    waits.sort();
    assert!(waits[0] >= least && waits[999] <= most, "{waits:?}");
    assert!(waits[500] < Duration::from_millis(150), "{:?}", waits[500]);
    assert!(waits[990] > Duration::from_millis(350), "{:?}", waits[990]);
    sandbox.fault(Fault::once(FaultKind::Stall(most)));
    assert!(wait() >= most + least);
}

#[test]
fn the_journal_has_the_last_requests() {
    let sandbox = Sandbox::new(Settings::default());
    for number in 0..120 {
        status(&sandbox, &format!("/{number}?a=b"));
    }
    let requests = &sandbox.state().provider.journal;
    assert_eq!(requests.len(), 100);
    assert_eq!(requests[0]["target"], "/119?a=b");
    assert_eq!(requests[0]["status"], 404);
}
