//! Clients that try to use up the upstream's budget or slots. The honest client's
//! misses are still answered, and its hits in any case. Who goes first is in
//! `upstream::queue`, how misses are counted in `limit`.

use crate::support::{Answer, Client, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

const HONEST: &str = "198.51.100.1";
const HOSTILE: &str = "203.0.113.1";

/// Clients are identified by a forwarding field.
const CONFIG: &str = "clients.trusted_proxies = [\"127.0.0.1\"]\nupstream.retry = false\n";

async fn get(connection: &mut Client, client: &str, target: &str) -> Answer {
    let fields = [("x-forwarded-for", client)];
    connection.request("GET", target, &fields).await
}

/// Sends a request on a new connection, and reads nothing.
async fn request_as(gateway: &Gateway, client: &str, target: &str) -> Client {
    let mut connection = gateway.client().await;
    let fields = [("x-forwarded-for", client)];
    connection.send_request("GET", target, &fields).await;
    connection
}

#[tokio::test]
async fn one_client_leaves_a_quarter_of_the_slots_to_others() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.always(Reply::json("{}").behind(&gate));
    let slots = "upstream = { max_in_flight = 4, queue_timeout = \"10ms\" }";
    let gateway = Setup::before(&upstream)
        .config(CONFIG)
        .config(slots)
        .start();
    let mut held = Vec::new();
    for (number, client) in [HOSTILE, HOSTILE, HOSTILE, HONEST].into_iter().enumerate() {
        held.push(request_as(&gateway, client, &token(number)).await);
        upstream.until_requests(number + 1).await;
        let free = 3 - number as u64;
        let slots = ["slots", "slots_free", "kept_for_other_clients"];
        let slots = slots.map(|name| gateway.figure(&format!("/upstream/{name}")));
        assert_eq!(slots, [4, free, 1], "what is kept free is shown");
        if number >= 2 {
            // Its share, and then all of it, is in use.
            let mut more = request_as(&gateway, HOSTILE, &token(10)).await;
            let refused = more.answer("GET").await;
            assert_eq!((refused.status, refused.number("retry-after")), (503, 1));
            assert_eq!(refused.problem()["reason"], "no_slot");
        }
    }
    assert_eq!(upstream.count(), 4);
    gate.open();
    for mut client in held {
        assert_eq!(client.answer("GET").await.status, 200);
    }
}

/// It gets a stale answer at once, whose fetch keeps its place in the queue.
#[tokio::test]
async fn a_hundred_requests_of_one_client_do_not_hold_up_another() {
    let upstream = Upstream::start();
    let slots = "upstream = { max_in_flight = 2, queue_timeout = \"60s\" }";
    let setup = Setup::before(&upstream)
        .config(CONFIG)
        .config(slots)
        .manual();
    let waits = "cache.stale_wait = \"1m\"\nlimit.enabled = false";
    let gateway = setup.config(waits).start();
    let mut own = gateway.client().await;
    get(&mut own, HONEST, TOKEN).await;
    gateway.advance(11_000);
    let (first, rest) = (Gate::new(), Gate::new());
    upstream.once(&token(0), Reply::json("{}").behind(&first));
    upstream.always(Reply::json("{}").behind(&rest));
    let mut held = vec![request_as(&gateway, HOSTILE, &token(0)).await];
    upstream.until_requests(2).await;
    for number in 1..100 {
        held.push(request_as(&gateway, HOSTILE, &token(number)).await);
    }
    until("they wait", || gateway.queued() == 98).await;
    let stale = get(&mut own, HONEST, TOKEN).await;
    assert!(stale.must("cache-status").contains("stale"), "{stale:?}");
    until("its fetch waits", || gateway.queued() == 99).await;
    let joining = get(&mut own, HONEST, TOKEN).await;
    assert!(
        joining.must("cache-status").contains("stale"),
        "{joining:?}"
    );
    let mut miss = request_as(&gateway, HONEST, &token(1000)).await;
    until("so does a miss", || gateway.queued() == 100).await;
    first.open();
    upstream.until_requests(4).await;
    assert_eq!(upstream.targets()[3], token(1000), "it is its turn");
    rest.open();
    assert_eq!(miss.answer("GET").await.status, 200);
    upstream.until_requests(102).await;
    let fetched = upstream
        .targets()
        .iter()
        .rposition(|target| target == TOKEN);
    assert!((4..20).contains(&fetched.unwrap()), "{fetched:?}");
    let heaviest = gateway.status()["upstream"]["heaviest_clients"][0]["client"].clone();
    assert_eq!(heaviest, HOSTILE);
}

/// Two misses a minute, and as many requests as anyone likes.
const MISSES: &str = "limit.misses_per_minute = 2\n";

fn limited(upstream: &Upstream) -> Setup {
    let setup = Setup::before(upstream).manual();
    setup.config(CONFIG).config(MISSES)
}

#[tokio::test]
async fn misses_are_limited_apart_from_hits() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream).start();
    let mut connection = gateway.client().await;
    for number in 0..2 {
        let miss = get(&mut connection, HONEST, &token(number)).await;
        assert_eq!(miss.status, 200);
    }
    let refused = get(&mut connection, HONEST, &token(2)).await;
    assert_eq!((refused.status, refused.must("retry-after")), (429, "30"));
    assert_eq!(refused.must("ratelimit"), "\"misses\";r=0;t=30");
    assert_eq!(refused.must("ratelimit-policy"), "\"misses\";q=2;w=60");
    let error = refused.problem()["error"].to_string();
    assert!(error.contains("again in 30 s"), "{error}");
    for _ in 0..3 {
        let hit = get(&mut connection, HONEST, &token(1)).await;
        assert_eq!(hit.status, 200, "hits go on");
        assert!(hit.must("ratelimit").starts_with("\"default\""));
    }
    let other = get(&mut connection, HOSTILE, &token(3)).await;
    assert_eq!(other.status, 200);
    // What is stored and stale is served rather than nothing.
    gateway.advance(11_000);
    let stale = get(&mut connection, HONEST, &token(1)).await;
    assert_eq!((stale.status, stale.must("age")), (200, "11"));
    assert_eq!(upstream.count(), 3);
    gateway.advance(19_000);
    let miss = get(&mut connection, HONEST, &token(1)).await;
    assert_eq!(miss.must("age"), "0");
    assert_eq!(get(&mut connection, HONEST, &token(2)).await.status, 429);
    for (result, count) in [("refused", 2), ("stale", 1)] {
        assert_eq!(gateway.figure(&format!("/misses_limited/{result}")), count);
    }
    let reload = gateway.reload("limit.misses_per_minute = 0").await;
    assert_eq!(reload.status, 200);
    for number in 10..15 {
        let miss = get(&mut connection, HONEST, &token(number)).await;
        assert_eq!(miss.status, 200);
    }
}

#[tokio::test]
async fn a_follower_that_takes_over_is_a_miss_of_its_client() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let private = Reply::with(200, "cache-control: private\r\n", "{}");
    upstream.always(private.behind(&gate));
    let gateway = limited(&upstream)
        .config(crate::support::respect::ALL)
        .start();
    let mut first = request_as(&gateway, HONEST, "/v").await;
    upstream.until_requests(1).await;
    let mut second = request_as(&gateway, HONEST, "/v").await;
    gateway.until_all_is_read().await;
    gate.open();
    upstream.until_requests(2).await;
    for client in [&mut first, &mut second] {
        assert_eq!(client.answer("GET").await.status, 200);
    }
    let third = get(&mut first, HONEST, "/v").await;
    assert_eq!(third.status, 429, "it has had its two");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_follower_is_no_miss_of_its_client() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(&token(0), Reply::json("{}").behind(&gate));
    let gateway = limited(&upstream).start();
    let mut clients = vec![request_as(&gateway, HOSTILE, &token(0)).await];
    upstream.until_requests(1).await;
    for _ in 0..5 {
        clients.push(request_as(&gateway, HONEST, &token(0)).await);
    }
    gateway.until_all_is_read().await;
    let mut own = gateway.client().await;
    for (number, status) in [(1, 200), (2, 200), (3, 429)] {
        assert_eq!(get(&mut own, HONEST, &token(number)).await.status, status);
    }
    gate.open();
    for mut client in clients {
        assert_eq!(client.answer("GET").await.status, 200);
    }
}
