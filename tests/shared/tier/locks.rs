//! Who waits for another replica's fetch, and who does not.

use super::*;

/// The sum of a count over all replicas.
async fn sum(gateways: &[Gateway], name: &str) -> u64 {
    let mut sum = 0;
    for gateway in gateways {
        sum += responses(gateway).await[name].as_u64().unwrap();
    }
    sum
}

/// The first one's response is not stored. The others wait for it, and then fetch at once:
/// they do not wait for one another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_is_not_stored_is_waited_for_once() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let routes = support::ROUTES.replacen("200 = \"10s\", ", "", 1);
    assert_ne!(routes, support::ROUTES);
    let gateways = replicas(4, &engine, &clock, || {
        Setup::before(&upstream).config(&routes)
    });
    in_sync(&gateways).await;
    // On a busy machine others may ask again only when the lock may be taken again.
    for round in 1..=5 {
        let target = support::token(round);
        let (first, rest) = (Gate::new(), Gate::new());
        upstream.always(Reply::json("{}").behind(&rest));
        upstream.once(&target, Reply::json("{}").behind(&first));
        let (requests, led) = (upstream.count(), sum(&gateways, "led").await);
        let followed = sum(&gateways, "followed").await;
        let all = join_all(gateways.iter().map(|gateway| gateway.get(&target)));
        let steps = async {
            let began = Instant::now();
            while sum(&gateways, "followed").await < followed + 3 {
                assert!(began.elapsed() < support::PATIENCE, "three follow");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            first.open();
            let began = Instant::now();
            while upstream.count() < requests + 4 && began.elapsed() < Duration::from_secs(2) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let led = sum(&gateways, "led").await - led;
            let at_once = upstream.count() == requests + 4 && led == 1;
            rest.open();
            at_once
        };
        let (answers, at_once) = tokio::join!(all, steps);
        assert!(answers.iter().all(|answer| answer.status == 200));
        if at_once {
            return;
        }
    }
    panic!("they wait for one another in each round");
}

/// The first one has the lock, and waits for its own slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_to_queue_gives_up_the_lock() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || {
        let queue = "[upstream]\nmax_in_flight = 1\nqueue_timeout = \"60s\"";
        Setup::before(&upstream).config(queue)
    });
    in_sync(&gateways).await;
    let (slow, wanted) = (support::token(1), support::token(2));
    let gate = Gate::new();
    upstream.once(&slow, Reply::json("{}").behind(&gate));
    let occupied = gateways[0].get(&slow);
    let steps = async {
        until("the only slot is taken", || upstream.count() == 1).await;
        let queued = gateways[0].get(&wanted);
        let other = async {
            wait_until(&gateways[0], "it gives up", |now| now["given_up"] == 1).await;
            assert_eq!(gateways[1].get(&wanted).await.status, 200);
            let now = responses(&gateways[1]).await;
            assert_eq!((&now["unlocked"], &now["errors"]), (&0.into(), &0.into()));
            assert_eq!(upstream.count(), 2, "the first one waits still");
        };
        tokio::join!(queued, other).0
    };
    let steps = async {
        let queued = steps.await;
        // It has found what the other one has fetched, while its slot is taken.
        assert_eq!((queued.status, upstream.count()), (200, 2));
        assert!(queued.must("cache-status").ends_with("; detail=shared"));
        gate.open();
    };
    let (occupied, ()) = tokio::join!(occupied, steps);
    assert_eq!((occupied.status, upstream.count()), (200, 2));
}

/// One client wants more than its share of what another replica fetches; a second client
/// waits for such a fetch all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_waits_for_many_fetches_leaves_room_for_others() {
    const FETCHES: usize = 12;
    const SHARE: u64 = 8;
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || {
        let config = "clients.trusted_proxies = [\"127.0.0.1\"]\nupstream.max_in_flight = 100";
        Setup::before(&upstream).config(config)
    });
    in_sync(&gateways).await;
    let gate = Gate::new();
    upstream.always(Reply::json("{}").behind(&gate));
    let request = async |gateway: &Gateway, client: &str, number: usize| {
        let fields = [("x-forwarded-for", client)];
        let mut connection = gateway.client().await;
        let target = support::token(number);
        connection.send_request("GET", &target, &fields).await;
        connection
    };
    let mut connections = Vec::new();
    // All are fetched for clients of their own.
    for number in 0..=FETCHES {
        let client = format!("192.0.2.{number}");
        connections.push(request(&gateways[0], &client, number).await);
    }
    until("all are fetched", || upstream.count() == FETCHES + 1).await;
    for number in 0..FETCHES {
        connections.push(request(&gateways[1], "203.0.113.1", number).await);
    }
    wait_until(&gateways[1], "it waits for its share", |now| {
        now["followed"] == SHARE && now["unlocked"] == FETCHES as u64 - SHARE
    })
    .await;
    connections.push(request(&gateways[1], "198.51.100.1", FETCHES).await);
    wait_until(&gateways[1], "the honest client waits", |now| {
        now["followed"] == SHARE + 1
    })
    .await;
    let now = responses(&gateways[1]).await;
    assert_eq!(now["unlocked"], FETCHES as u64 - SHARE, "{now:#}");
    gate.open();
    for connection in &mut connections {
        assert_eq!(connection.answer("GET").await.status, 200);
    }
}

/// A long one, which is compressed and opened on a thread of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_response_is_shared() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    // One is long as it is stored, the other one only as it is sent.
    let random: String = (0..300_000).map(|_| fastrand::alphanumeric()).collect();
    for (number, content) in [random, "a".repeat(300_000)].iter().enumerate() {
        let target = support::token(number);
        let body = format!("{{\"long\":\"{content}\"}}");
        upstream.once(&target, Reply::json(&body));
        gateways[0].get(&target).await;
        stored(&gateways[0], number as u64 + 1).await;
        let answer = gateways[1].get(&target).await;
        assert!(answer.must("cache-status").ends_with("; detail=shared"));
        assert!(answer.body == body.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_timing_has_the_wait_for_another_replica() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || {
        Setup::before(&upstream).config("answers.server_timing = true")
    });
    // On a busy machine a call to the engine may take too long, and it is fetched twice. The
    // engine's clock is real, and what was received later than now by it is not used.
    for round in 1..=5 {
        in_sync(&gateways).await;
        let (target, gate) = (support::token(round), Gate::new());
        upstream.once(&target, Reply::json("{}").behind(&gate));
        let (fetched, followed) = (upstream.count(), sum(&gateways[1..], "followed").await);
        let follows = async {
            until("the first one fetches", || upstream.count() > fetched).await;
            let waits = async {
                wait_until(&gateways[1], "it waits", |now| {
                    now["followed"].as_u64() > Some(followed)
                })
                .await;
                clock.advance(Duration::from_millis(1));
                gate.open();
            };
            tokio::join!(gateways[1].get(&target), waits).0
        };
        let (led, followed) = tokio::join!(gateways[0].get(&target), follows);
        assert_eq!((led.status, followed.status), (200, 200));
        if followed.must("cache-status").ends_with("; detail=shared") {
            let expected = "cache;desc=shared, shared;dur=1.0, queue;dur=0.0, budget;dur=0.0, \
                            upstream;dur=0.0";
            assert_eq!(followed.must("server-timing"), expected);
            return;
        }
    }
    let now = responses(&gateways[1]).await;
    panic!("it is fetched twice in each round: {now:#}");
}
