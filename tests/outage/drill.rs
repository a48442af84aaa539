//! The drill itself, phase by phase, and what is demanded of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method};
use ordgate::sandbox::{Sandbox, Settings};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::figures::Table;
use crate::front::{Front, Mood};
use crate::load::{self, HANG, Phase, ask, check_refusal, kind};
use crate::support::gateway::{Source, merge, shipped};
use crate::support::wire::Wire;
use crate::support::{Gateway, Setup};

/// The budget of each key.
const PER_MINUTE: usize = 600;
const PER_SECOND: usize = 20;
const KEYS: &str = "outage-drill-key-one,outage-drill-key-two";
/// How long what has ceased to be fresh may stand in, and how long the upstream
/// is down: nearly as long. What lies between is for the breaker's last pause
/// and for what was not quite fresh when it began.
const STALE_IF_ERROR: &str = "10s";
const OUTAGE: Duration = Duration::from_secs(8);
/// The load before the outage.
const BEFORE: Duration = Duration::from_secs(3);
/// The bound on the time from the upstream's return until all is fresh. A
/// key waits for the breaker, a probe of the tip and the budget, for which a
/// crowd waits as well.
const RECOVERY: Duration = Duration::from_secs(15);
/// How long the load goes on then.
const CROWD: Duration = Duration::from_secs(2);
/// A gateway waits so long for a fresh answer where a stale one may stand in
/// (`cache.stale_wait`); the rest is for a machine that is busy otherwise.
const WARM_BOUND: Duration = Duration::from_secs(4);
/// Requests that a dead upstream may get for each second that it is dead: two
/// tips and what the breaker lets through.
const PROBES_A_SECOND: usize = 5;
/// What it may get before the breaker has opened.
const UNTIL_OPEN: usize = 60;

fn config(front: &Front, stale_if_error: &str) -> toml::Table {
    let mut config = shipped();
    let text = format!(
        r#"
        [server]
        listen = "127.0.0.1:0"
        workers = 2
        drain_timeout = "2s"
        [admin]
        listen = "127.0.0.1:0"
        [limit]
        enabled = false
        [cache]
        stale_wait = "500ms"
        [chain]
        recent_ttl = "1s"
        live_ttl = "2s"
        tip.ordinals.every = "1s"
        tip.runes.every = "1s"
        [upstream]
        url = "http://{}"
        requests_per_minute = {PER_MINUTE}
        requests_per_second = {PER_SECOND}
        queue_timeout = "500ms"
        connect_timeout = "500ms"
        first_byte_timeout = "1s"
        timeout = "2s"
        breaker.max_pause = "1s"
        "#,
        front.address
    );
    merge(&mut config, &text);
    for route in config["route"].as_array_mut().unwrap() {
        route["cache"]["stale_if_error"] = stale_if_error.into();
    }
    config
}

fn gateway(front: &Front, stale_if_error: &str) -> Gateway {
    let source = Source {
        config: config(front, stale_if_error),
        keys: KEYS.to_owned(),
        ..Source::default()
    };
    Setup::reading(&Arc::new(Mutex::new(source))).start()
}

/// What is asked for all the time: tokens, which any block changes, and blocks
/// and transactions, old and new.
fn warm(sandbox: &Sandbox) -> Vec<String> {
    let examples = sandbox.examples();
    let all = [&examples.tokens, &examples.transactions, &examples.blocks];
    let some = all.into_iter().map(|paths| {
        // The newest stand last.
        let skipped = paths.len().saturating_sub(24);
        paths.iter().skip(skipped).cloned()
    });
    some.flatten().collect()
}

/// Takes the upstream away for nearly as long as the stale bound.
pub(crate) async fn play(mood: Mood) {
    let sandbox = Sandbox::new(Settings::default());
    let front = Front::start(&sandbox).await;
    let gateway = gateway(&front, STALE_IF_ERROR);
    let warm = warm(&sandbox);
    fill(&gateway, &warm).await;

    let phase = watch::Sender::new(Phase::Before);
    let load = load::start(gateway.public, &warm, &phase);
    sleep(BEFORE).await;

    front.become_(mood).await;
    let down = Instant::now();
    let (sent, accepts) = (sent(&gateway).await, front.accepts());
    phase.send_replace(Phase::Outage);
    sleep(OUTAGE / 2).await;
    // The chain goes on without us.
    sandbox.advance(1);
    sleep(OUTAGE / 2).await;
    let open = gateway.status()["upstream"]["breaker"]["state"].clone();
    let sent = self::sent(&gateway).await - sent;
    let accepts = front.accepts() - accepts;
    let seconds = down.elapsed().as_secs() as usize + 1;

    // First, for who waits may be answered at once.
    phase.send_replace(Phase::After);
    front.become_(Mood::Well).await;
    let up = Instant::now();
    let closed_after = closed(&gateway, up).await;
    let fresh_after = fresh(&gateway, &sandbox, &warm, up).await;
    let asked = front.arrivals().between(up, Instant::now());
    sleep(CROWD).await;
    phase.send_replace(Phase::Over);
    let notes = load.end().await;
    let storm = front.arrivals().between(up, Instant::now());
    let minute = front.arrivals().busiest(Duration::from_secs(60));
    let second = front.arrivals().busiest(Duration::from_secs(1));
    gateway.end().await;

    let mut table = Table::new(format!(
        "outage drill: the upstream {} for {} s; {} warm keys",
        if mood == Mood::Mute {
            "is mute"
        } else {
            "refuses"
        },
        OUTAGE.as_secs(),
        warm.len()
    ));
    for (phase, notes) in &notes {
        let kinds: Vec<_> = notes
            .kinds
            .iter()
            .map(|(k, n)| format!("{k} {n}"))
            .collect();
        let cold: Vec<_> = notes
            .statuses
            .iter()
            .map(|(s, n)| format!("{s} {n}"))
            .collect();
        let phase = format!("{phase:?}").to_lowercase();
        table.row(format!("{phase}: warm answers"), notes.warm.count());
        table.row("  of them", kinds.join(", "));
        table.row("  errors", notes.errors.len());
        table.row("  time, p50 / p99 / max", notes.warm.ranks());
        table.row(format!("{phase}: cold answers by status"), cold.join(", "));
        table.row("  time, p50 / p99 / max", notes.cold.ranks());
    }
    table.row(
        "outage: requests sent, connections accepted",
        format!("{sent}, {accepts}"),
    );
    table.row("return: upstream requests until all is fresh", asked);
    table.row("  and until the end", storm);
    table.row("return: breaker closed after", format!("{closed_after:?}"));
    table.row(
        "return: all warm keys fresh after",
        format!("{fresh_after:?}"),
    );
    table.row("most of a key in any 60 s (budget 600)", minute);
    table.row("most of a key in any 1 s (budget 20)", second);
    table.print();

    let outage = &notes[&Phase::Outage];
    for (phase, notes) in &notes {
        // What comes with the crowd may be refused: the budget is not for it
        // alone, and stale has its bound.
        let errors = match phase {
            Phase::Before | Phase::Outage => notes.errors.first(),
            Phase::After | Phase::Over => None,
        };
        assert_eq!(errors, None, "{phase:?}");
        assert!(
            notes.warm.max() < WARM_BOUND,
            "{phase:?}: {}",
            notes.warm.ranks()
        );
    }
    assert_eq!(
        outage.kinds.get("fetched"),
        None,
        "a dead upstream has answered"
    );
    // Or the drill would have been none.
    assert!(
        outage.kinds.get("stale-if-error").copied().unwrap_or(0) > 50,
        "{outage:?}"
    );
    assert!(outage.warm.count() > 100, "{outage:?}");
    assert_eq!(
        outage.statuses.get(&404),
        None,
        "a dead upstream has answered"
    );
    assert_ne!(open, "closed", "the breaker has not opened");
    let most = UNTIL_OPEN + PROBES_A_SECOND * seconds;
    assert!(
        sent <= most && accepts <= most,
        "{sent} sent, {accepts} accepted"
    );
    assert!(
        minute <= PER_MINUTE && second <= PER_SECOND,
        "{minute}, {second}"
    );
}

/// Takes the upstream away for longer than the stale bound: what was warm is
/// served up to the bound and no longer, and what is final for ever.
pub(crate) async fn outlast(mood: Mood) {
    let sandbox = Sandbox::new(Settings::default());
    let front = Front::start(&sandbox).await;
    let gateway = gateway(&front, "2s");
    let examples = sandbox.examples();
    let live = examples.token().to_owned();
    let settled = examples.block().to_owned();
    fill(&gateway, &[live.clone(), settled.clone()]).await;

    front.become_(mood).await;
    let down = Instant::now();
    let mut wire = Wire::connect(gateway.public, None).await.unwrap();
    let (mut last_stale, mut refused) = (None, 0);
    let mut statuses = Vec::new();
    // Fresh for 2 s at the most, and stale for 2 s more.
    while down.elapsed() < Duration::from_millis(6500) {
        let (answer, took) = ask(&mut wire, &live).await;
        // It was asked for when the answer was on its way, at the latest.
        let asked = down.elapsed().saturating_sub(took);
        if answer.status == 200 {
            assert_ne!(kind(&answer), "fetched", "a dead upstream has answered");
            assert_eq!(refused, 0, "what had been refused is served again");
            last_stale = Some(asked);
        } else {
            check_refusal(&answer);
            refused += 1;
            statuses.push(answer.status);
        }
        let (answer, _) = ask(&mut wire, &settled).await;
        assert_eq!((answer.status, kind(&answer)), (200, "hit"));
        sleep(Duration::from_millis(50)).await;
    }
    statuses.sort_unstable();
    statuses.dedup();
    let mut table = Table::new(format!(
        "longer than the stale bound: the upstream {}",
        if mood == Mood::Mute {
            "is mute"
        } else {
            "refuses"
        }
    ));
    table.row("last stale answer after", format!("{last_stale:?}"));
    table.row("refusals from then on", format!("{refused}, {statuses:?}"));
    table.print();
    assert!(
        last_stale.is_some_and(|at| at < Duration::from_secs(5)),
        "{last_stale:?}"
    );
    assert!(refused > 0);
    gateway.end().await;
}

/// Asks for every key once, as often as it takes until it is there.
async fn fill(gateway: &Gateway, warm: &[String]) {
    let mut wire = Wire::connect(gateway.public, None).await.unwrap();
    for target in warm {
        let began = Instant::now();
        loop {
            let (answer, _) = ask(&mut wire, target).await;
            if answer.status == 200 {
                break;
            }
            assert!(began.elapsed() < HANG, "{target}: {answer:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Requests sent upstream so far, those included that found nobody there.
async fn sent(gateway: &Gateway) -> usize {
    let sent = gateway.status()["upstream"]["sent"].as_u64();
    usize::try_from(sent.unwrap()).unwrap()
}

/// How long after a moment the breaker is closed.
async fn closed(gateway: &Gateway, since: Instant) -> Duration {
    loop {
        let status = gateway.status();
        if status["upstream"]["breaker"]["state"] == "closed" {
            return since.elapsed();
        }
        assert!(since.elapsed() < RECOVERY, "{}", status["upstream"]);
        sleep(Duration::from_millis(20)).await;
    }
}

/// How long after a moment every key is answered as the upstream would now.
async fn fresh(gateway: &Gateway, sandbox: &Sandbox, warm: &[String], since: Instant) -> Duration {
    let mut wire = Wire::connect(gateway.public, None).await.unwrap();
    for target in warm {
        loop {
            let (answer, _) = ask(&mut wire, target).await;
            let now = sandbox.answer(&Method::GET, target, &HeaderMap::new());
            let stale = matches!(kind(&answer), "stale-if-error" | "hit, stale" | "none");
            if answer.status == 200 && !stale && answer.body == now.body {
                break;
            }
            assert!(since.elapsed() < RECOVERY, "{target}: {answer:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
    since.elapsed()
}
