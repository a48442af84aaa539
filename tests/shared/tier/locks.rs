//! Who waits for another replica's fetch, and who does not.

use std::collections::BTreeMap;

use super::*;
use crate::servers::Connection;

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

/// What a replica has looked up, and stored, or could not because it was out of sync for a
/// moment. The first of each is the success.
const LOOKED_UP: [&str; 3] = ["led", "skipped", "errors"];
const STORED: [&str; 4] = ["stored", "skipped", "errors", "unstored"];

/// These counts.
async fn done(gateway: &Gateway, names: &[&str]) -> Vec<u64> {
    let now = responses(gateway).await;
    let counts = names.iter().map(|name| now[*name].as_u64().unwrap());
    counts.collect()
}

/// Waits until one of these counts has grown. Returns whether that is the first.
async fn more_done(gateway: &Gateway, names: &[&str], before: &[u64]) -> bool {
    wait_until(gateway, "it is done, or not", |now| {
        let mut counts = names.iter().zip(before);
        counts.any(|(name, before)| now[*name].as_u64() > Some(*before))
    })
    .await;
    done(gateway, names).await[0] > before[0]
}

/// Counts the look-ups of each key that a server carries out, until it is enough.
fn look_ups(
    monitor: &mut Connection,
    counts: &mut BTreeMap<String, usize>,
    is_enough: impl Fn(&BTreeMap<String, usize>) -> bool,
) {
    let began = Instant::now();
    while !is_enough(counts) {
        assert!(began.elapsed() < support::PATIENCE, "{counts:?}");
        let line = monitor.read();
        // The script's command: lua] "HGET" "KEY" "i"
        let words: Vec<_> = line.text().split('"').collect();
        if let [.., "HGET", _, key, _, "i", _] = words[..] {
            *counts.entry(key.to_owned()).or_default() += 1;
        }
    }
}

/// One client has many requests in the queue, and the engine is asked again for its share of
/// them only. Beside them, the request of another client gets what another replica has
/// fetched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_many_queued_requests_makes_few_calls_and_leaves_room_for_others() {
    const QUEUED: usize = 24;
    const SHARE: usize = 16;
    const LOOKS: usize = 3 * QUEUED;
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || {
        let config = "clients.trusted_proxies = [\"127.0.0.1\"]\n\
                      [upstream]\nmax_in_flight = 1\nqueue_timeout = \"10m\"";
        Setup::before(&upstream).config(config)
    });
    in_sync(&gateways).await;
    let request = async |client: &str, number: usize| {
        let fields = [("x-forwarded-for", client)];
        let mut connection = gateways[0].client().await;
        let target = support::token(number);
        connection.send_request("GET", &target, &fields).await;
        connection
    };
    let gate = Gate::new();
    upstream.once(&support::token(0), Reply::json("{}").behind(&gate));
    let mut connections = vec![request("192.0.2.1", 0).await];
    until("the only slot is taken", || upstream.count() == 1).await;
    let (mut monitor, mut counts) = (engine.connection().monitor(), BTreeMap::new());
    for number in 1..=QUEUED {
        connections.push(request("203.0.113.1", number).await);
    }
    look_ups(&mut monitor, &mut counts, |counts| {
        let again = counts.values().map(|count| count - 1);
        again.sum::<usize>() >= LOOKS
    });
    let again = counts.values().filter(|count| **count > 1).count();
    assert!(again <= SHARE, "{counts:?}");
    let (one, other) = (&gateways[0], &gateways[1]);
    let mut is_shared = false;
    for target in QUEUED + 1..=QUEUED + 5 {
        in_sync(&gateways).await;
        let before = [done(one, &LOOKED_UP).await, done(other, &STORED).await];
        let honest = request("198.51.100.1", target).await;
        let looked_up = more_done(one, &LOOKED_UP, &before[0]).await;
        assert_eq!(other.get(&support::token(target)).await.status, 200);
        let stored = more_done(other, &STORED, &before[1]).await;
        connections.push(honest);
        is_shared = looked_up && stored;
        if is_shared {
            break;
        }
    }
    assert!(is_shared, "replicas are out of sync again and again");
    let honest = connections.pop().unwrap().answer("GET").await;
    assert!(honest.must("cache-status").ends_with("; detail=shared"));
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
