//! Clients that do not read their answers.

use std::time::Duration;

use serde_json::Value;

use crate::support::{Client, Gateway, Reply, Upstream, respect, until, within};

const MIB: usize = 1 << 20;

/// An upstream with large, cacheable answers that differ by target.
fn large(upstream: &Upstream, bytes: usize) {
    upstream.always(Reply::with(
        200,
        "cache-control: public, max-age=600\r\n",
        vec![b'x'; bytes],
    ));
}

fn gateway(upstream: &Upstream, config: &str) -> Gateway {
    respect::plain(upstream)
        .config("upstream.first_byte_timeout = \"30s\"")
        .config(config)
        .start()
}

async fn status(gateway: &Gateway) -> Value {
    gateway.admin("/status").await.json()
}

/// Asks, and reads nothing.
async fn stuck(gateway: &Gateway, target: &str) -> Client {
    let mut client = Client::connect_narrow(gateway.public).await;
    client.send_request("GET", target, &[]).await;
    client
}

async fn until_status(gateway: &Gateway, what: &str, holds: impl Fn(&Value) -> bool) {
    let wait = async {
        while !holds(&status(gateway).await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, wait).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_hold_no_more_than_the_bound() {
    const CLIENTS: usize = 40;
    const BOUND: usize = 8 * MIB;
    let upstream = Upstream::start();
    large(&upstream, 2 * MIB);
    let gateway = gateway(
        &upstream,
        "server.max_unsent_bytes = \"8MiB\"\nlimit.unsent_bytes = \"1GiB\"\ncache.max_bytes = \"32MiB\"",
    );
    let mut clients = Vec::new();
    let mut most = 0;
    for number in 0..CLIENTS {
        clients.push(stuck(&gateway, &format!("/{number}")).await);
        upstream.until_requests(number + 1).await;
        most = most.max(status(&gateway).await["unsent"]["bytes"].as_u64().unwrap());
    }
    until_status(&gateway, "all but what fits are closed", |status| {
        status["connections"]["reset_unsent"].as_u64() >= Some((CLIENTS - 4) as u64)
    })
    .await;
    assert!(most <= BOUND as u64, "{most}");
    // The longest stuck went first, with a reset; the last ones are served.
    let first = clients[0].rest().await.len();
    assert!(first < 2 * MIB, "{first}");
    let last = clients[CLIENTS - 1].answer("GET").await;
    assert_eq!((last.status, last.body.len()), (200, 2 * MIB));
    // The honest client gets hits and misses whole.
    for target in ["/honest", "/honest", "/other"] {
        let answer = gateway.get(target).await;
        assert_eq!((answer.status, answer.body.len()), (200, 2 * MIB));
    }
    drop(clients);
    until_status(&gateway, "nothing is held", |status| {
        status["unsent"]["bytes"] == 0
    })
    .await;
    let metrics = gateway.admin("/metrics").await;
    let line = "ordgate_connections_reset_total{reason=\"unsent\"} ";
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

/// Each hostile client has an address of its own and holds one answer, so that
/// each holds as much as the honest one while it reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reading_client_is_served_while_many_do_not_read() {
    let upstream = Upstream::start();
    large(&upstream, 2 * MIB);
    let gateway = gateway(
        &upstream,
        "server.max_unsent_bytes = \"8MiB\"\ncache.max_bytes = \"32MiB\"",
    );
    let mut served = 0;
    let mut clients = Vec::new();
    for number in 0..24 {
        let from = [127, 0, 1, 1 + number];
        let mut client = Client::connect_narrow_from(from, gateway.public).await;
        client.send_request("GET", &format!("/{number}"), &[]).await;
        upstream.until_requests(clients.len() + served + 1).await;
        clients.push(client);
        let answer = gateway.get(&format!("/honest/{number}")).await;
        assert_eq!((answer.status, answer.body.len()), (200, 2 * MIB));
        served += 1;
    }
    assert_eq!(served, 24);
    let status = status(&gateway).await;
    assert!(
        status["unsent"]["bytes"].as_u64() <= Some(8 * MIB as u64),
        "{status}"
    );
    assert!(
        status["connections"]["reset_unsent"].as_u64() >= Some(20),
        "{status}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stored_answer_counts_once_however_many_are_sent_it() {
    const CLIENTS: u64 = 20;
    let upstream = Upstream::start();
    large(&upstream, 2 * MIB);
    let gateway = gateway(&upstream, "server.max_unsent_bytes = \"4MiB\"");
    assert_eq!(gateway.get("/popular").await.status, 200);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(stuck(&gateway, "/popular").await);
    }
    until("all are stuck", || gateway.connections() >= CLIENTS).await;
    for client in &mut clients {
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.body.len()), (200, 2 * MIB));
    }
    assert_eq!(status(&gateway).await["connections"]["reset_unsent"], 0);
    assert_eq!(upstream.count(), 1);
}
