//! Answers are sent while they come, whether they are stored or not.

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
async fn an_answer_is_streamed_to_all_clients_while_it_is_stored() {
    for reply in [halves, chunked] {
        let upstream = Upstream::start();
        let gateway = before(&upstream);
        let (head, gate) = (Gate::new(), Gate::new());
        upstream.once("/v", reply(&gate).behind(&head));
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(gateway.start_get("/v").await);
        }
        upstream.until_requests(1).await;
        head.open();
        let mut first = Vec::new();
        for client in &mut clients {
            let came = reads(client, "half").await;
            assert!(!came.contains("rest"), "{came}");
            first.push(came);
        }
        // A client that comes in the middle gets it from the beginning.
        let mut late = gateway.start_get("/v").await;
        let came = reads(&mut late, "half").await;
        assert!(came.contains("collapsed"), "{came}");
        // A client with its ETag gets a 304.
        let held = [("if-none-match", "\"s\"")];
        assert_eq!(gateway.request("GET", "/v", &held).await.status, 304);
        gate.open();
        for client in clients.iter_mut().chain([&mut late]) {
            reads(client, "rest").await;
        }
        let stored = gateway.get("/v").await;
        assert!(stored.must("cache-status").contains("hit"), "{stored:?}");
        assert_eq!(stored.text(), "halfrest");
        assert_eq!(upstream.count(), 1);
        let leads = first.iter().filter(|came| !came.contains("collapsed"));
        assert_eq!(leads.count(), 1);
    }
}

#[tokio::test]
async fn an_answer_is_stored_after_all_clients_left() {
    let upstream = Upstream::start();
    let patient = "upstream.response_body.grace = \"1m\"";
    let gateway = plain(&upstream).config(patient).start();
    let gate = Gate::new();
    upstream.once("/v", halves(&gate));
    let mut client = gateway.start_get("/v").await;
    reads(&mut client, "half").await;
    drop(client);
    until("it is gone", || gateway.connections() == 0).await;
    gate.open();
    until("it is stored", || gateway.relayed() == 0).await;
    assert_eq!(gateway.get("/v").await.text(), "halfrest");
    assert_eq!(upstream.count(), 1);
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
