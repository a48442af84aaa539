//! `GET /events`: what clients that listen are told of the chain, and when.

use std::sync::Arc;
use std::time::Duration;

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::json;

use super::{Ground, ORDINALS, RARELY, RUNES, block, probe_all, settled};
use crate::support::frames::{FrameClient, HEADERS, request};
use crate::support::transport::tls_listener;
use crate::support::{Client, Gateway, Setup, Transport, until};

/// What a listener in HTTP/1.1 has been sent.
struct Listener {
    client: Client,
    came: String,
}

impl Listener {
    async fn of(gateway: &Gateway, target: &str, last_id: &str) -> Self {
        let mut client = gateway.client().await;
        let fields = [("last-event-id", last_id)];
        client.send_request("GET", target, &fields).await;
        let came = String::new();
        let mut listener = Self { client, came };
        // Its first event, or what it is sent in place of one.
        listener.hears("\n\n").await;
        listener
    }

    /// Waits until it has been sent a text, and the chunk with it is whole.
    async fn hears(&mut self, text: &str) {
        let is_whole = |came: &str| came.ends_with("\n\n\r\n") || came.ends_with("0\r\n\r\n");
        while !(self.came.contains(text) && is_whole(&self.came)) {
            let more = self.client.some(1).await;
            assert!(!more.is_empty(), "{text} before the end of {}", self.came);
            self.came += std::str::from_utf8(&more).unwrap();
        }
    }
}

/// The events of a stream, such as `tip runes 840123`.
fn events(came: &str) -> Vec<String> {
    let mut names = came.lines().filter_map(|line| line.strip_prefix("event: "));
    let data = came.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|data| {
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        let number = data.get("height").or(data.get("from")).unwrap();
        let tip = data["tip"].as_str().unwrap();
        format!("{} {tip} {number}", names.next().unwrap())
    });
    events.collect()
}

fn last_id(came: &str) -> &str {
    let mut ids = came.lines().filter_map(|line| line.strip_prefix("id: "));
    ids.next_back().unwrap()
}

/// Requests that were answered with a document or with this stream.
fn opened(gateway: &Gateway) -> u64 {
    let status = gateway.status();
    let rows = status["requests"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["outcome"] == "document");
    rows.map(|row| row["requests"].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn events_come_once_answers_are_of_the_new_state_over_every_transport() {
    let (tls, _folder) = tls_listener();
    let ground = Ground::with(Settings::default(), &tls).await;
    let (gateway, tip) = (&ground.gateway, ground.tip());
    let shown = [block(tip), block(tip - 1), block(tip - 9)];
    for path in shown.iter().chain(&shown) {
        ground.same(path).await;
    }
    probe_all(gateway).await;
    let mut clients = Vec::new();
    for transport in [Transport::Http1, Transport::H2c, Transport::H2Tls] {
        let mut client = gateway.endpoint(transport).client().await;
        client.send_request("GET", "/events", &[]).await;
        clients.push(client);
    }
    let mut of_runes = Listener::of(gateway, "/events?tip=runes", "").await;
    until("all listen", || opened(gateway) == 4).await;

    ground.sandbox.advance(1);
    probe_all(gateway).await;
    of_runes.hears(&format!("{}}}", tip + 1)).await;
    let highest = block(tip + 1);
    ground.costs(&highest, 1).await;
    ground.costs(&highest, 0).await;
    probe_all(gateway).await;

    ground.sandbox.reorg(2);
    for tip in [ORDINALS, RUNES] {
        gateway.probe(tip).await;
    }
    let marks = |came: &str| came.matches("event: tip").count();
    while marks(&of_runes.came) < 3 {
        let more = of_runes.client.some(1).await;
        of_runes.came += std::str::from_utf8(&more).unwrap();
    }
    assert!(!of_runes.came.contains("reorg"), "the check has not ended");
    gateway.check_blocks(RUNES).await;
    of_runes.hears("event: reorg").await;
    for path in shown.iter().chain([&highest]) {
        ground.same(path).await;
    }
    gateway.advance(31_000);
    probe_all(gateway).await;
    of_runes.hears("event: settled").await;

    gateway.server().drain(Duration::ZERO);
    of_runes.hears("retry: ").await;
    let runes = |height| format!("tip runes {height}");
    let from = tip - 8;
    let reorg = format!("reorg runes {from}");
    let end = [runes(tip + 1), reorg, format!("settled runes {}", tip + 1)];
    let expected = [vec![runes(tip), runes(tip + 1)], end.to_vec()].concat();
    assert_eq!(events(&of_runes.came), expected);
    for client in &mut clients {
        let answer = client.answer("GET").await;
        assert_eq!(answer.must("content-type"), "text/event-stream");
        let mut came = events(answer.text());
        assert_eq!(came.len(), 9, "{came:?}");
        came.retain(|event| event.contains("runes"));
        assert_eq!(came, expected);
        assert_eq!(last_id(answer.text()), last_id(&of_runes.came));
        assert!(answer.text().contains("\nretry: "), "{}", answer.text());
    }
    until("all have ended", || gateway.connections() == 0).await;
}

/// Also of an earlier run.
#[tokio::test]
async fn what_an_id_names_is_not_repeated() {
    let sandbox = Sandbox::new(Settings::default());
    let start = || {
        let setup = Setup::alone().chain().sandbox(&sandbox);
        setup.config(RARELY).manual().start()
    };
    let gateway = start();
    settled(&gateway).await;
    let first = Listener::of(&gateway, "/events", "").await;
    let tip = sandbox.tip().height;
    let both = [format!("tip ordinals {tip}"), format!("tip runes {tip}")];
    assert_eq!(events(&first.came), both);
    let id = last_id(&first.came).to_owned();
    sandbox.advance(1);
    probe_all(&gateway).await;
    let again = start();
    settled(&again).await;
    let tip = tip + 1;
    let both = [format!("tip ordinals {tip}"), format!("tip runes {tip}")];
    for gateway in [&gateway, &again] {
        let missed = Listener::of(gateway, "/events", &id).await;
        assert_eq!(events(&missed.came), both);
    }
    let id = last_id(&Listener::of(&again, "/events", "").await.came).to_owned();
    for gateway in [&gateway, &again] {
        let mut listener = Listener::of(gateway, "/events", &id).await;
        assert_eq!(events(&listener.came), [""; 0]);
        gateway.advance(31_000);
        probe_all(gateway).await;
        listener.hears("event: settled").await;
        let ordinals = format!("settled ordinals {tip}");
        assert_eq!(events(&listener.came)[0], ordinals);
    }
}

#[tokio::test]
async fn the_stream_is_asked_for_as_answers_are() {
    let ground = Ground::new().await;
    let gateway = &ground.gateway;
    let head = gateway.request("HEAD", "/events?tip=runes&x=y", &[]).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-store, no-transform"),
        ("x-accel-buffering", "no"),
        ("access-control-allow-origin", "*"),
        ("content-length", ""),
    ] {
        assert_eq!(head.field(name).unwrap_or_default(), value, "{name}");
    }
    for (method, target, status) in [
        ("POST", "/events", 405),
        ("OPTIONS", "/events", 204),
        ("GET", "/events?tip=none", 400),
        ("GET", "/events?tip=runes&tip=runes", 400),
        ("GET", "/events/", 404),
    ] {
        let answer = gateway.request(method, target, &[]).await;
        assert_eq!(answer.status, status, "{method} {target}");
    }
    let refused = gateway.get("/events?tip=none").await.problem();
    assert_eq!(refused["allowed"], "one of ordinals, runes");
    let explained = gateway.explain("/events").await;
    assert_eq!(explained["next"]["does"], "answer itself");
    let document = gateway.get("/openapi.json").await.json();
    assert_eq!(
        document["paths"]["/events"]["get"]["operationId"],
        json!("events")
    );
    until("nobody listens", || gateway.connections() == 0).await;

    let setup = Setup::alone().sandbox(&ground.sandbox).client_tokens("");
    let gateway = setup.config("clients.require_token = true").start();
    for (method, status) in [("GET", 401), ("HEAD", 401), ("OPTIONS", 204)] {
        assert_eq!(gateway.request(method, "/events", &[]).await.status, status);
    }
}

#[tokio::test]
async fn a_listener_outlives_reloads_and_keeps_no_gateway() {
    let ground = Ground::new().await;
    let gateway = &ground.gateway;
    assert_eq!(gateway.reload("limit.enabled = false").await.status, 200);
    let before = Arc::downgrade(&gateway.server().current_gateway());
    let mut listener = Listener::of(gateway, "/events?tip=runes", "").await;
    assert_eq!(gateway.reload("limit.enabled = true").await.status, 200);
    until("the gateway is gone", || before.upgrade().is_none()).await;
    ground.sandbox.advance(1);
    ground.probe().await;
    listener.hears(&format!("{}}}", ground.tip())).await;
}

/// In HTTP/1.1 the socket's buffer is full at some time, as with any answer.
#[tokio::test]
async fn a_listener_whose_window_is_closed_is_dropped() {
    const WINDOW: u16 = 4;
    let ground = Ground::with(Settings::default(), "server.write_timeout = \"400ms\"").await;
    let gateway = &ground.gateway;
    let from = [127, 0, 0, 1];
    let mut client = FrameClient::connect_from(from, gateway.public, &[(WINDOW, 0)]).await;
    client.send(&request(1, "/events", &[])).await;
    client.next_of(HEADERS).await.unwrap();
    until("it is dropped", || {
        gateway.advance(1_000);
        gateway.connections() == 0
    })
    .await;
    assert_eq!(gateway.figure("/connections/reset_slow"), 1);
}
