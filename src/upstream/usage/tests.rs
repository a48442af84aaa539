//! Tests of the counts of upstream requests by what they are sent for.

use super::heavy_hitters::ROWS;
use super::*;
use crate::upstream::admission::Check;

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
}

fn usage() -> Usage {
    let usage = Usage::default();
    usage.name_routes([(0, "block"), (1, "tx")].into_iter());
    usage
}

/// Sends a client's request for a miss.
fn miss(usage: &Usage, client: u32, target: &str, seconds: u64) {
    let request = RequestPriority::of(Client::V4(client), Priority::Miss).on_route(1);
    usage.record(
        SendReason::First(Priority::Miss),
        request,
        target,
        at(seconds),
    );
}

fn requests(rows: &[RouteSpending]) -> Vec<(String, &'static str, u64)> {
    let row = |row: &RouteSpending| (row.route.to_string(), row.reason, row.requests);
    let mut rows: Vec<_> = rows.iter().map(row).collect();
    rows.sort();
    rows
}

fn rows<const N: usize>(rows: [(&str, &'static str, u64); N]) -> Vec<(String, &'static str, u64)> {
    let rows = rows.map(|(route, reason, requests)| (route.to_owned(), reason, requests));
    rows.into()
}

#[test]
fn each_request_counts_for_its_route_and_reason() {
    let usage = usage();
    let own = RequestPriority::own;
    let client = RequestPriority::of(Client::V4(7), Priority::Miss);
    let first = SendReason::First;
    // what is sent, for what, and the name of the route that it returns
    let sent = [
        (first(Priority::Miss), client.on_route(1), Some("tx")),
        (first(Priority::Miss), client.on_route(1), Some("tx")),
        (
            first(Priority::Miss),
            client.on_route(0).check(Check::Anchor),
            Some("block"),
        ),
        (
            first(Priority::Miss),
            client.on_route(1).check(Check::Live),
            Some("tx"),
        ),
        (
            first(Priority::Revalidation),
            own(Priority::Revalidation).on_route(0).check(Check::Fork),
            Some("block"),
        ),
        (first(Priority::Probe), own(Priority::Probe), None),
        (
            SendReason::Retry,
            client.on_route(1).check(Check::Live),
            Some("tx"),
        ),
        (SendReason::KeyCheck, client.on_route(1), Some("tx")),
        // A route that is not known.
        (first(Priority::Miss), client.on_route(9), None),
    ];
    for (reason, request, route) in sent {
        let named = usage.record(reason, request, "/x", at(0));
        assert_eq!(named.as_deref(), route, "{reason:?} {request:?}");
    }
    let expected = rows([
        ("block", "anchor-check", 1),
        ("block", "fork-search", 1),
        ("none", "miss", 1),
        ("none", "probe", 1),
        ("tx", "key-check", 1),
        ("tx", "live-check", 1),
        ("tx", "miss", 2),
        ("tx", "retry", 1),
    ]);
    assert_eq!(requests(&usage.by_route()), expected);
    assert_eq!(requests(&usage.recent(at(1)).by_route), expected);
    let recent = usage.recent(at(1));
    // ordgate's own requests are no client's, and status paths no target.
    let clients: Vec<_> = recent
        .clients
        .iter()
        .map(|row| (row.item, row.count))
        .collect();
    assert_eq!(clients, [(Client::V4(7), 7)]);
    let targets: u64 = recent.targets.iter().map(|row| row.count).sum();
    assert_eq!(targets, 7);
}

#[test]
fn requests_are_forgotten_after_five_to_ten_minutes() {
    // when they are looked at, how long ago the window began, and how many are seen of one
    // at each of the seconds 0, 299, 300 and 601
    let looks = [
        (602, 302, 2),
        (899, 599, 2),
        (900, 300, 1),
        (1199, 599, 1),
        (1200, 300, 0),
        (9000, 300, 0),
    ];
    for (second, since, seen) in looks {
        let usage = usage();
        for sent in [0, 299, 300, 601] {
            miss(&usage, 1, "/a", sent);
        }
        let recent = usage.recent(at(second));
        assert_eq!(recent.since, Duration::from_secs(since), "{second}");
        let clients = recent.clients.first().map_or(0, |row| row.count);
        let targets = recent.targets.first().map_or(0, |row| row.count);
        let by_route: u64 = recent.by_route.iter().map(|row| row.requests).sum();
        assert_eq!([clients, targets, by_route], [seen; 3], "{second}");
        let sent = requests(&usage.by_route());
        assert_eq!(sent, rows([("tx", "miss", 4)]), "since the start");
    }
}

#[test]
fn one_client_with_many_addresses_and_targets_hides_nobody() {
    let usage = usage();
    for round in 0..5000 {
        miss(&usage, 1000 + round, &format!("/invented/{round}"), 0);
        if round % 20 == 0 {
            miss(&usage, 7, "/wanted", 0);
        }
    }
    let recent = usage.recent(at(1));
    let client = recent.clients.iter().find(|row| row.item == Client::V4(7));
    let client = client.expect("it has a row");
    assert!(client.count >= 250 && client.count - client.error <= 250);
    let wanted = recent.targets.first().expect("there is a row");
    assert_eq!((&*wanted.item.0, &*wanted.item.1), ("tx", "/wanted"));
    assert!(recent.clients.len() <= ROWS && recent.targets.len() <= ROWS);
}

#[test]
fn memory_is_bounded_whatever_the_targets_are() {
    let usage = usage();
    for round in 0..200 {
        miss(&usage, 1, &format!("/{round}/{}", "ä".repeat(5000)), 0);
    }
    let recent = usage.recent(at(1));
    assert_eq!(recent.targets.len(), ROWS);
    assert!(recent.targets.iter().all(|row| row.item.1.len() <= 256));
}

#[test]
fn a_route_keeps_its_counts_when_a_reload_gives_it_another_number() {
    let usage = usage();
    miss(&usage, 1, "/a", 0);
    usage.name_routes([(2, "tx"), (3, "new")].into_iter());
    let request = RequestPriority::own(Priority::Miss);
    for number in [1, 2, 3] {
        usage.record(
            SendReason::First(Priority::Miss),
            request.on_route(number),
            "/a",
            at(1),
        );
    }
    let expected = rows([("new", "miss", 1), ("tx", "miss", 3)]);
    assert_eq!(requests(&usage.by_route()), expected);
}
