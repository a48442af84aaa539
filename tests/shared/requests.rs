//! Requests of a gateway that are charged to the pool.

use super::server::{Server, wait_for};
use crate::support::{Client, Gate, Gateway, Reply, Setup, Upstream, token, until};

/// A floor of one request a second, and a pool of 30 a minute.
const CONFIG: &str = r#"
    shared = { replicas = 2, timeout = "1s" }
    upstream.requests_per_minute = 40
    upstream.requests_per_second = 8
    upstream.queue_timeout = "20s"
"#;

/// A request that the pool has denied. It waits in the queue.
async fn denied(gateway: &Gateway, number: usize, why: &str) -> Client {
    let client = gateway.start_get(&token(number)).await;
    let why = format!("/shared/permits/{why}");
    until("it is denied, and waits", || {
        gateway.figure(&why) == 1 && gateway.queued() == 1
    })
    .await;
    client
}

/// Time passes, and the queue tries again: a reload wakes it.
async fn pass(gateway: &Gateway, millis: u64, config: &str) {
    gateway.advance(millis);
    assert_eq!(gateway.reload(config).await.status, 200);
}

#[tokio::test]
async fn a_request_that_the_pool_denies_waits_and_is_answered() {
    let (server, upstream) = (Server::start(), Upstream::start());
    let setup = Setup::before(&upstream).engine(&server.url()).keys("a-key");
    let gateway = setup.manual().config(CONFIG).start();
    let floor = async |number| assert_eq!(gateway.get(&token(number)).await.status, 200);
    let answered = async |mut client: Client| assert_eq!(client.answer("GET").await.status, 200);

    // The engine is new. The floor has one request again before the pool opens.
    let is_up = || gateway.status()["shared"]["engine"]["is_up"] == true;
    until("the engine answers", is_up).await;
    floor(0).await;
    let waiting = denied(&gateway, 1, "closed").await;
    pass(&gateway, 1_005, "").await;
    answered(waiting).await;
    let set: Vec<String> = server.call(&["KEYS", "ordgate:permits:*"]);
    server.open_pool(&set[0]);
    let permits = || server.call::<u64>(&["ZCARD", &set[0]]) - 1;

    // The engine's answer comes too late: the permit is given back, by a script that the
    // engine has, as after the first permit.
    let script = include_str!("../../src/shared/scripts/give_back.lua");
    server.call::<String>(&["SCRIPT", "LOAD", script]);
    gateway.advance(5_000);
    floor(2).await;
    server.stop();
    pass(&gateway, 0, "shared.timeout = \"50ms\"").await;
    let waiting = denied(&gateway, 3, "absent").await;
    pass(&gateway, 1_005, "shared.timeout = \"1s\"").await;
    answered(waiting).await;
    server.proceed();
    gateway.advance(61_000);
    until("the engine answers", is_up).await;
    wait_for("it is given back", || permits() == 0);

    // All permits are in use for a minute, and the floor for longer.
    let gate = Gate::new();
    upstream.once(&token(4), Reply::json("{}").behind(&gate));
    let held = gateway.start_get(&token(4)).await;
    upstream.until_requests(5).await;
    let (seconds, _): (u64, u64) = server.call(&["TIME"]);
    let leaves = ((seconds + 100) * 1000).to_string();
    for number in 0..30 {
        server.call::<()>(&["ZADD", &set[0], &leaves, &number.to_string()]);
    }
    let waiting = denied(&gateway, 5, "spent").await;
    server.call::<()>(&["ZREMRANGEBYSCORE", &set[0], "2", "+inf"]);
    pass(&gateway, 61_000, "").await;
    answered(waiting).await;
    // It is answered: it leaves the minute sooner than one under way.
    let counted = ["ZCOUNT", &set[0], "2", &leaves];
    wait_for("it is returned", || server.call::<u64>(&counted) == 1);
    let granted = gateway.figure("/shared/permits/granted");
    assert_eq!((granted, permits()), (1, 1));
    gate.open();
    answered(held).await;
    assert_eq!(upstream.count(), 6, "each was sent once");
}
