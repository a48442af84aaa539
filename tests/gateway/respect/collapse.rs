//! Many clients on one cold target.

use std::sync::Arc;

use super::{did, ok, plain};
use crate::support::{Client, Gate, Gateway, Reply, Upstream, until};

const CLIENTS: usize = 100;

/// So many clients that all wait for one target.
async fn waiting(gateway: &Gateway, clients: usize) -> Vec<Client> {
    let mut asking = Vec::new();
    let held = || Arc::strong_count(gateway.server().gateway());
    for _ in 0..clients {
        asking.push(gateway.client().await);
    }
    until("all are connected", || {
        gateway.connections() >= clients as u64
    })
    .await;
    let before = held();
    for client in &mut asking {
        client.ask("GET", "/v", &[]).await;
    }
    until("all wait", || held() >= before + clients).await;
    asking
}

#[tokio::test]
async fn what_can_be_stored_is_asked_for_once() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let gate = Gate::new();
    let fields = ["cache-control: max-age=60", "cache-status: origin; hit"];
    upstream.once("/v", ok(&fields, "body").behind(&gate));
    let asking = waiting(&gateway, CLIENTS).await;
    upstream.asked(1).await;
    gate.open();
    let mut collapsed = 0;
    for mut client in asking {
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.text()), (200, "body"));
        let said = answer.all("cache-status");
        assert_eq!((said.len(), said[0]), (2, "origin; hit"), "{said:?}");
        collapsed += usize::from(did(&answer) == "fwd=uri-miss; fwd-status=200; collapsed");
    }
    assert_eq!((collapsed, upstream.count()), (CLIENTS - 1, 1));
}

#[tokio::test]
async fn what_cannot_be_stored_is_asked_for_by_each() {
    let upstream = Upstream::start();
    let config = "upstream.max_in_flight = 200";
    let gateway = plain(&upstream).config(config).manual().start();
    let gate = Gate::new();
    let never = Gate::new();
    let head = "HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 4\r\n\r\n";
    // The body of the first never ends.
    upstream.once("/v", Reply::raw(head).behind(&gate).hang());
    upstream.always(ok(&["cache-control: no-store"], "body"));
    let asking = waiting(&gateway, CLIENTS).await;
    upstream.asked(1).await;
    gate.open();
    upstream.asked(CLIENTS).await;
    // Whoever leads has the first answer.
    let mut asking = asking.into_iter();
    let _leader = asking.next();
    for mut client in asking {
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.text()), (200, "body"));
    }
    assert_eq!(upstream.count(), CLIENTS);
    never.open();
}

#[tokio::test]
async fn a_leader_that_goes_away_takes_nothing_with_it() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let gate = Gate::new();
    let reply = ok(&["cache-control: max-age=60"], "body");
    upstream.once("/v", reply.behind(&gate));
    let mut leader = gateway.client().await;
    leader.ask("GET", "/v", &[]).await;
    upstream.asked(1).await;
    let followers = waiting(&gateway, 5).await;
    let connections = gateway.connections();
    drop(leader);
    until("it has gone", || gateway.connections() < connections).await;
    gate.open();
    for mut client in followers {
        assert_eq!(client.answer("GET").await.text(), "body");
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_failure_is_told_to_all() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let gate = Gate::new();
    upstream.once("/v", Reply::raw("nonsense\r\n\r\n").behind(&gate));
    let asking = waiting(&gateway, 10).await;
    gate.open();
    for mut client in asking {
        assert_eq!(client.answer("GET").await.status, 502);
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn what_is_unsafe_is_never_collapsed() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let gate = Gate::new();
    let reply = ok(&["cache-control: max-age=60"], "body");
    upstream.always(reply.behind(&gate));
    let mut asking = Vec::new();
    for method in ["POST", "PUT", "DELETE", "PATCH", "UNHEARD-OF", "HEAD"] {
        let mut client = gateway.client().await;
        client.ask(method, "/v", &[]).await;
        asking.push((client, method));
    }
    upstream.asked(asking.len()).await;
    gate.open();
    for (mut client, method) in asking {
        assert_eq!(client.answer(method).await.status, 200);
    }
}

#[tokio::test]
async fn who_waits_for_another_variant_gets_its_own() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |seen| {
        let accept = seen.field("accept").unwrap_or_default();
        let fields = ["cache-control: max-age=60", "vary: accept"];
        ok(&fields, &accept).behind(&held)
    });
    let waits = || Arc::strong_count(gateway.server().gateway());
    let mut asking = Vec::new();
    for accept in ["a", "b", "a", "c"] {
        let mut client = gateway.client().await;
        let before = waits();
        client.ask("GET", "/v", &[("accept", accept)]).await;
        until("it waits", || waits() > before).await;
        asking.push((client, accept));
    }
    upstream.asked(1).await;
    assert_eq!(upstream.count(), 1);
    gate.open();
    for (mut client, accept) in asking {
        assert_eq!(client.answer("GET").await.text(), accept);
    }
    assert_eq!(upstream.count(), 3);
}
