//! Whatever becomes of the engine, or of who fetches, all requests are answered.

use rustix::process::Signal;

use super::super::support::gateway::merge;
use super::super::support::{Client, Process};
use super::*;

/// The engine fails while all replicas wait for one's fetch.
async fn fails_amid_a_fetch(fail: impl FnOnce(&mut Server), proceed: impl FnOnce(&Server)) {
    let (mut engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(4, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    let gate = Gate::new();
    upstream.always(Reply::json("{}").behind(&gate));
    let all = join_all(gateways.iter().map(|gateway| gateway.get(TOKEN)));
    let failed = async {
        for gateway in &gateways {
            wait_until(gateway, "it leads or follows", |now| {
                now["led"] == 1 || now["followed"] == 1
            })
            .await;
        }
        assert_eq!(upstream.count(), 1);
        fail(&mut engine);
        until("all others fetch it as well", || upstream.count() == 4).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(all, failed);
    for answer in &answers {
        assert_eq!((answer.status, answer.text()), (200, "{}"));
    }
    // Nothing waits for the engine any more.
    for gateway in &gateways {
        assert_eq!(gateway.get(&support::token(9)).await.status, 200);
    }
    proceed(&engine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_is_killed_amid_a_fetch() {
    if is_installed() {
        fails_amid_a_fetch(Server::kill, |_| {}).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_is_paused_amid_a_fetch() {
    if is_installed() {
        fails_amid_a_fetch(|engine| engine.stop(), Server::proceed).await;
    }
}

/// An engine with a token that the first of two replicas has fetched.
async fn with_a_stored_token() -> (Server, Upstream, Vec<Gateway>) {
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    gateways[0].get(TOKEN).await;
    stored(&gateways[0], 1).await;
    (engine, upstream, gateways)
}

/// As after the end of the process that has the lock: it is never given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_left_behind_expires() {
    if !is_installed() {
        return;
    }
    let (engine, upstream, gateways) = with_a_stored_token().await;
    let key = &keys(&engine, "*:e:*")[0];
    engine.call(&["DEL", key]);
    let lock = format!("{key}:l");
    engine.call(&["SET", &lock, &"f".repeat(32), "PX", "700"]);
    let began = Instant::now();
    assert_eq!(gateways[1].get(TOKEN).await.status, 200);
    assert_eq!(upstream.count(), 2);
    let now = responses(&gateways[1]).await;
    assert_eq!(
        (&now["followed"], &now["led"]),
        (&1.into(), &1.into()),
        "{now:#}"
    );
    eprintln!("it leads after {:?}", began.elapsed());
}

/// The one that has the lock takes longer than others wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_waited_long_enough_fetches_without_the_lock() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    for gateway in &gateways {
        let done = gateway.reload("shared.fill_wait = \"300ms\"").await;
        assert_eq!(done.status, 200, "{}", done.text());
    }
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let slow = gateways[0].get(TOKEN);
    let other = async {
        until("the first one fetches", || upstream.count() == 1).await;
        let answer = gateways[1].get(TOKEN).await;
        assert_eq!(answer.status, 200);
        assert_eq!(responses(&gateways[1]).await["unlocked"], 1);
        gate.open();
    };
    let (slow, ()) = tokio::join!(slow, other);
    assert_eq!((slow.status, upstream.count()), (200, 2));
}

/// The fetch fails: the lock is given up, and the next one fetches at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_fetch_gives_up_the_lock() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    upstream.always(Reply::status(500, "{}"));
    assert_eq!(gateways[0].get(TOKEN).await.status, 502);
    wait_until(&gateways[0], "it gives up", |now| now["given_up"] == 1).await;
    upstream.always(Reply::json("{}"));
    assert_eq!(gateways[1].get(TOKEN).await.status, 200);
    let now = responses(&gateways[1]).await;
    assert_eq!(now["unlocked"], 0, "{now:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_values_are_not_used_and_counted() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(1, &engine, &clock, || Setup::before(&upstream));
    let ones = &gateways[0];
    in_sync(&gateways).await;
    ones.get(TOKEN).await;
    stored(ones, 1).await;
    let key = &keys(&engine, "*:e:*")[0];
    let forget = async || ones.purge("route=brc20-token").await;
    let token = "0".repeat(31) + "5";
    for (number, value) in ["", "x", &"y".repeat(5000)].iter().enumerate() {
        assert_eq!(forget().await.status, 200);
        engine.call(&["HSET", key, "i", &token, "v", value, "r", "?", "p", "?"]);
        assert_eq!(ones.get(TOKEN).await.status, 200);
        assert_eq!(upstream.count(), number + 2);
        let foreign = &responses(ones).await["unusable"]["foreign"];
        assert_eq!(*foreign, number + 1);
        stored(ones, number as u64 + 2).await;
    }
    // An id that is none, and a key of another kind: such a reply is an error.
    forget().await;
    engine.call(&["HSET", key, "i", "none", "v", "x"]);
    assert_eq!(ones.get(TOKEN).await.status, 200);
    forget().await;
    engine.call(&["SET", key, "text"]);
    assert_eq!(ones.get(TOKEN).await.status, 200);
    let now = responses(ones).await;
    assert_eq!(now["errors"], 2, "{now:#}");
    assert_eq!(upstream.count(), 6);
}

/// The process that has the lock is killed: another one fetches when the lock expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_fetches_is_killed() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let config = format!("{CONFIG}\n[server]\nworkers = 1");
    let mut table = config.parse().unwrap();
    for more in [
        support::ROUTES,
        &upstream.config(),
        "shared.fill_wait = \"500ms\"",
    ] {
        merge(&mut table, more);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    std::fs::write(&file, table.to_string()).unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let variables = [("ORDGATE_SHARED_URL", &*engine.url())];
    let (process, public, admin) = Process::serve(&arguments, &variables);
    let gateways = replicas(1, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    loop {
        let status = Client::connect(admin).await.get("/status").await.json();
        if status["shared"]["responses"]["used"] == true {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let mut client = Client::connect(public).await;
    client.send_request("GET", TOKEN, &[]).await;
    until("it fetches", || upstream.count() == 1).await;
    assert_eq!(keys(&engine, "*:l").len(), 1);
    process.signal(Signal::KILL);
    let began = Instant::now();
    assert_eq!(gateways[0].get(TOKEN).await.status, 200);
    eprintln!("another one has it {:?} later", began.elapsed());
    let now = responses(&gateways[0]).await;
    assert_eq!(
        (&now["followed"], &now["led"]),
        (&1.into(), &1.into()),
        "{now:#}"
    );
    assert_eq!(upstream.count(), 2);
    gate.open();
}

/// As if the engine's clock had been an hour ahead until now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stored_before_the_engines_clock_was_set_back_is_not_used() {
    if !is_installed() {
        return;
    }
    let (engine, upstream, gateways) = with_a_stored_token().await;
    let now: u64 = engine.call(&["TIME"]).list()[0].text().parse().unwrap();
    let ahead = ((now + 3600) * 1000).to_string();
    let set = engine.call(&["HSET", "{ordgate:j}", "clock", &ahead]);
    assert_eq!(set, Answer::Number(0), "the field was there");
    let generation = async |gateway: &Gateway| {
        let status = gateway.admin("/status").await.json();
        status["shared"]["journal"]["generations"].clone()
    };
    let began = Instant::now();
    while generation(&gateways[1]).await != 1 {
        assert!(
            began.elapsed() < support::PATIENCE,
            "the journal begins anew"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    in_sync(&gateways).await;
    gateways[1].get(TOKEN).await;
    assert_eq!(upstream.count(), 2);
    assert_eq!(responses(&gateways[1]).await["hits"], 0);
}
