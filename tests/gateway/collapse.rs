//! Collapsing: any number of clients on a cold key cause one upstream request, and
//! all get an answer.

use crate::support::upstream::usual_body;
use crate::support::{
    Answer, BLOCK, BLOCK_CANONICAL, Client, Gate, Gateway, Reply, Setup, Upstream,
};

const CLIENTS: usize = 200;

fn of_two_workers(upstream: &Upstream) -> Setup {
    Setup::before(upstream).config("server.workers = 2")
}

/// So many connections, each used once, so that all are being served.
async fn connect(gateway: &Gateway, clients: usize) -> Vec<Client> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        let mut client = gateway.client().await;
        assert_eq!(client.get("/nowhere").await.status, 404);
        connected.push(client);
    }
    connected
}

/// So many connections, each with a request for one page that waits for the
/// upstream.
async fn request_from(gateway: &Gateway, clients: usize) -> Vec<Client> {
    let mut pending = connect(gateway, clients).await;
    for client in &mut pending {
        client.send_request("GET", BLOCK, &[]).await;
    }
    gateway.until_all_is_read().await;
    pending
}

async fn answers(clients: Vec<Client>) -> Vec<Answer> {
    let mut answers = Vec::new();
    for mut client in clients {
        answers.push(client.answer("GET").await);
    }
    answers
}

#[tokio::test]
async fn many_clients_on_a_cold_key_are_one_upstream_request() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(
        BLOCK_CANONICAL,
        Reply::json(usual_body(BLOCK_CANONICAL)).behind(&gate),
    );
    let gateway = of_two_workers(&upstream).start();
    let pending = request_from(&gateway, CLIENTS).await;
    upstream.until_requests(1).await;
    gate.open();
    let answers = answers(pending).await;
    for answer in &answers {
        assert_eq!(answer.status, 200);
        assert_eq!(answer.text(), usual_body(BLOCK_CANONICAL));
    }
    let led = "ordgate; fwd=uri-miss; fwd-status=200; stored";
    let count = |status: &str| {
        let all = answers.iter().filter(|a| a.must("cache-status") == status);
        all.count()
    };
    assert_eq!(count(led), 1);
    assert!(count(&format!("{led}; collapsed")) > CLIENTS / 2);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn the_first_client_leaves_and_the_others_are_answered() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(BLOCK_CANONICAL, Reply::json("{}").behind(&gate));
    let gateway = of_two_workers(&upstream).start();
    let first = request_from(&gateway, 1).await;
    upstream.until_requests(1).await;
    let others = request_from(&gateway, 20).await;
    drop(first);
    gate.open();
    for answer in answers(others).await {
        assert_eq!((answer.status, answer.text()), (200, "{}"));
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_failure_of_the_upstream_is_every_clients_answer() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(BLOCK_CANONICAL, Reply::status(500, "{}").behind(&gate));
    let gateway = of_two_workers(&upstream).start();
    let pending = request_from(&gateway, 50).await;
    upstream.until_requests(1).await;
    gate.open();
    for answer in answers(pending).await {
        assert_eq!(answer.status, 502);
        answer.problem();
    }
    assert_eq!(upstream.count(), 1, "the failure was shared");
    assert_eq!(gateway.get(BLOCK).await.status, 200, "and not stored");
}
