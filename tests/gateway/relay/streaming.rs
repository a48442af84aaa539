//! Answers are sent to the client that leads while they come, whether they are stored or
//! not.

use super::{before, text};
use crate::respect::{ok, plain};
use crate::support::{Client, Gate, Reply, Upstream, until};

const STORE: &str = "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\netag: \"s\"\r\n";

/// The first half of a body of eight bytes, and the second once a gate opens.
fn halves(gate: &Gate) -> Reply {
    Reply::raw(format!("{STORE}content-length: 8\r\n\r\nhalf")).then(gate, "rest")
}

fn chunked(gate: &Gate) -> Reply {
    Reply::raw(format!(
        "{STORE}transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"
    ))
    .then(gate, "4\r\nrest\r\n0\r\n\r\n")
}

/// Reads until some text has come.
async fn reads(client: &mut Client, wanted: &str) -> String {
    let mut came = String::new();
    while !came.contains(wanted) {
        let more = client.some(1).await;
        assert!(!more.is_empty(), "{wanted} does not come: {came}");
        came.push_str(&text(&more));
    }
    came
}

#[tokio::test]
async fn an_answer_is_streamed_to_the_client_that_leads_and_others_wait_for_the_stored_one() {
    for reply in [halves, chunked] {
        let upstream = Upstream::start();
        let gateway = before(&upstream);
        let gate = Gate::new();
        upstream.once("/v", reply(&gate));
        let mut leader = gateway.start_get("/v").await;
        let came = reads(&mut leader, "half").await;
        assert!(
            !came.contains("rest") && !came.contains("collapsed"),
            "{came}"
        );
        let mut others = Vec::new();
        for _ in 0..5 {
            others.push(gateway.start_get("/v").await);
        }
        let mut holder = gateway.client().await;
        let held = [("if-none-match", "\"s\"")];
        holder.send_request("GET", "/v", &held).await;
        gateway.until_all_is_read().await;
        gate.open();
        reads(&mut leader, "rest").await;
        for client in &mut others {
            let answer = client.answer("GET").await;
            assert_eq!(answer.text(), "halfrest");
            assert!(
                answer.must("cache-status").contains("collapsed"),
                "{answer:?}"
            );
        }
        assert_eq!(holder.answer("GET").await.status, 304);
        let stored = gateway.get("/v").await;
        assert!(stored.must("cache-status").contains("hit"), "{stored:?}");
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn an_answer_is_stored_after_all_clients_left() {
    let upstream = Upstream::start();
    let patient = "upstream.silence_timeout = \"1m\"";
    let gateway = plain(&upstream).config(patient).start();
    let gate = Gate::new();
    upstream.once("/v", halves(&gate));
    let mut client = gateway.start_get("/v").await;
    reads(&mut client, "half").await;
    drop(client);
    gate.open();
    until("it is stored", || gateway.relayed() == 0).await;
    assert_eq!(gateway.get("/v").await.text(), "halfrest");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_client_that_is_closed_while_it_leads_leaves_no_part_of_an_answer() {
    const LARGE: usize = 3 << 20;
    let large = "x".repeat(LARGE);
    for is_chunked in [false, true] {
        let upstream = Upstream::start();
        let gateway = plain(&upstream).config("limit.connections = 1").start();
        let gate = Gate::new();
        let first = match is_chunked {
            true => Reply::raw(format!(
                "{STORE}transfer-encoding: chunked\r\n\r\n{LARGE:x}\r\n{large}\r\n"
            ))
            .then(&gate, "4\r\nrest\r\n0\r\n\r\n"),
            false => Reply::raw(format!(
                "{STORE}content-length: {}\r\n\r\n{large}",
                LARGE + 4
            ))
            .then(&gate, "rest"),
        };
        upstream.once("/v", first);
        let address = [127, 0, 0, 9];
        let mut leader = Client::connect_narrow_from(address, gateway.public).await;
        leader.send_request("GET", "/v", &[]).await;
        until("it is collected", || {
            gateway.figure("/unsent/bytes") >= LARGE as u64
        })
        .await;
        // It reads nothing, and makes room for another connection of its client.
        let _other = gateway.client_from(address).await;
        until("it is closed", || {
            gateway.figure("/connections/closed_for_others") == 1
        })
        .await;
        upstream.once("/v", ok(&["cache-control: max-age=60"], "another"));
        gate.open();
        let answer = gateway.get("/v").await;
        let whole = answer.text() == "another" || answer.text() == format!("{large}rest");
        assert!(whole, "{is_chunked}: {} bytes", answer.body.len());
    }
}

#[tokio::test]
async fn events_are_sent_as_they_come() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    // It may be stored by its fields, if it ever ended.
    let events = "HTTP/1.1 200 OK\r\ncache-control: no-cache\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\ndata: 1\n\n";
    let gate = Gate::new();
    upstream.once("/v", Reply::raw(events).then(&gate, "data: 2\n\n").hang());
    let mut client = gateway.start_get("/v").await;
    reads(&mut client, "data: 1").await;
    // It delays no other request, and holds no slot.
    upstream.once("/v", Reply::raw(events).hang());
    let mut other = gateway.start_get("/v").await;
    reads(&mut other, "data: 1").await;
    until("their slots are free", || gateway.in_flight() == 0).await;
    gate.open();
    reads(&mut client, "data: 2").await;
}

#[tokio::test]
async fn an_answer_purged_or_invalidated_under_way_is_not_served_to_later_clients() {
    for by in ["purge", "method"] {
        let upstream = Upstream::start();
        let gateway = before(&upstream);
        let gate = Gate::new();
        upstream.once("/v", halves(&gate));
        let mut first = gateway.start_get("/v").await;
        reads(&mut first, "half").await;
        match by {
            "purge" => drop(gateway.purge("all").await),
            _ => drop(gateway.request("DELETE", "/v", &[]).await),
        }
        let asked = upstream.count();
        let (head, held) = (Gate::new(), ok(&["cache-control: max-age=60"], "new"));
        upstream.usually({
            let head = head.clone();
            move |_| held.clone().behind(&head)
        });
        // They want what is there now, and it is fetched once for all of them.
        let mut later = Vec::new();
        for _ in 0..5 {
            later.push(gateway.start_get("/v").await);
        }
        upstream.until_requests(asked + 1).await;
        gateway.until_all_is_read().await;
        head.open();
        for client in &mut later {
            assert_eq!(client.answer("GET").await.text(), "new", "{by}");
        }
        assert_eq!(upstream.count(), asked + 1, "{by}");
        gate.open();
        reads(&mut first, "rest").await;
        until("all is over", || gateway.relayed() == 0).await;
        assert_eq!(gateway.get("/v").await.text(), "new", "{by}");
    }
}

/// A browser's hard reload goes up alone.
#[tokio::test]
async fn an_answer_for_one_client_alone_is_not_stored_after_an_invalidation() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let gate = Gate::new();
    upstream.once("/v", halves(&gate));
    let mut client = gateway.client().await;
    let reload = [("cache-control", "no-cache")];
    client.send_request("GET", "/v", &reload).await;
    reads(&mut client, "half").await;
    gateway.request("DELETE", "/v", &[]).await;
    gate.open();
    reads(&mut client, "rest").await;
    until("all is over", || gateway.relayed() == 0).await;
    let asked = upstream.count();
    gateway.get("/v").await;
    assert_eq!(upstream.count(), asked + 1);
}

#[tokio::test]
async fn a_refresh_counts_for_no_connection() {
    let upstream = Upstream::start();
    let setup = plain(&upstream).config("server.max_unsent_bytes = \"1MiB\"");
    let gateway = setup.manual().start();
    let mut client = gateway.client().await;
    let fields = ["cache-control: max-age=1, stale-while-revalidate=60"];
    let large = ok(&fields, &"x".repeat(600_000));
    for target in ["/v", "/w"] {
        upstream.once(target, ok(&fields, "small"));
        client.get(target).await;
    }
    gateway.advance(2000);
    upstream.usually(move |_| large.clone());
    for target in ["/v", "/w"] {
        assert_eq!(client.get(target).await.text(), "small");
    }
    for target in ["/v", "/w"] {
        while gateway.get(target).await.text() == "small" {}
    }
    assert_eq!(client.get("/v").await.body.len(), 600_000);
}

/// The answer to an earlier request, which ends later, does not replace a newer one.
#[tokio::test]
async fn a_slow_answer_does_not_replace_a_newer_one() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let gate = Gate::new();
    upstream.once("/v", halves(&gate));
    let mut slow = gateway.start_get("/v").await;
    reads(&mut slow, "half").await;
    gateway.advance(1000);
    upstream.once("/v", ok(&["cache-control: max-age=60"], "newer"));
    let no_cache = [("cache-control", "no-cache")];
    let newer = gateway.request("GET", "/v", &no_cache).await;
    assert_eq!(newer.text(), "newer");
    gate.open();
    reads(&mut slow, "rest").await;
    until("both are complete", || gateway.relayed() == 0).await;
    assert_eq!(gateway.get("/v").await.text(), "newer");
    assert_eq!(upstream.count(), 2);
}
