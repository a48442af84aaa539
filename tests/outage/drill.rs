//! The drill itself, phase by phase, and what is demanded of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method};
use ordgate::sandbox::{Sandbox, Settings};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::figures::Table;
use crate::front::{Front, Mood};
use crate::load::{self, HANG, Notes, Phase, ask, check_refusal, kind};
use crate::support::gateway::{Source, merge, shipped};
use crate::support::wire::Wire;
use crate::support::{Gateway, Setup};

/// The budget of each key.
const PER_MINUTE: usize = 600;
pub(crate) const PER_SECOND: usize = 20;
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
pub(crate) const WARM_BOUND: Duration = Duration::from_secs(4);
/// Requests that a dead upstream may get for each second that it is dead: two
/// tips and what the breaker lets through.
const PROBES_A_SECOND: usize = 5;
/// What it may get before the breaker has opened.
const UNTIL_OPEN: usize = 60;

pub(crate) fn config(front: &Front, stale_if_error: &str) -> toml::Table {
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
pub(crate) fn warm(sandbox: &Sandbox) -> Vec<String> {
    let examples = sandbox.examples();
    let all = [&examples.tokens, &examples.transactions, &examples.blocks];
    let some = all.into_iter().map(|paths| {
        // The newest stand last.
        let skipped = paths.len().saturating_sub(24);
        paths.iter().skip(skipped).cloned()
    });
    some.flatten().collect()
}

/// What was measured in a drill.
struct Drill {
    mood: Mood,
    warm: usize,
    load: BTreeMap<Phase, Notes>,
    outage: Outage,
    recovery: Recovery,
    /// The most requests with one key in any minute, and in any second.
    busiest: [usize; 2],
}

struct Outage {
    /// Whole seconds, rounded up.
    seconds: usize,
    /// Requests that were sent, and connections that the upstream accepted.
    sent: usize,
    accepts: usize,
    /// The breaker's state at its end.
    breaker: serde_json::Value,
}

/// The upstream is back. The times are from its return on.
struct Recovery {
    closed_after: Duration,
    fresh_after: Duration,
    /// Upstream requests until everything was fresh, and until the end.
    requests: [usize; 2],
}

/// Takes the upstream away for nearly as long as the stale bound.
pub(crate) async fn play(mood: Mood) {
    let drill = Drill::run(mood).await;
    drill.print();
    drill.check_answers();
    drill.check_outage();
}

impl Drill {
    async fn run(mood: Mood) -> Self {
        let sandbox = Sandbox::new(Settings::default());
        let front = Front::start(&sandbox).await;
        let gateway = gateway(&front, STALE_IF_ERROR);
        let warm = warm(&sandbox);
        fill(&gateway, &warm).await;
        let phase = watch::Sender::new(Phase::Before);
        let load = load::start(gateway.public, &warm, &phase);
        sleep(BEFORE).await;

        front.become_(mood).await;
        phase.send_replace(Phase::Outage);
        let outage = Outage::measure(&gateway, &front, &sandbox).await;

        // The phase first: answers may come as soon as the upstream is back.
        phase.send_replace(Phase::After);
        front.become_(Mood::Well).await;
        let up = Instant::now();
        let closed_after = closed(&gateway, up).await;
        let fresh_after = fresh(&gateway, &sandbox, &warm, up).await;
        let until_fresh = front.arrivals().between(up, Instant::now());
        sleep(CROWD).await;
        phase.send_replace(Phase::Over);
        let load = load.end().await;
        let until_end = front.arrivals().between(up, Instant::now());
        let busiest = [60, 1].map(|span| front.arrivals().busiest(Duration::from_secs(span)));
        gateway.end().await;
        Self {
            mood,
            warm: warm.len(),
            load,
            outage,
            recovery: Recovery {
                closed_after,
                fresh_after,
                requests: [until_fresh, until_end],
            },
            busiest,
        }
    }

    fn print(&self) {
        let mut table = Table::new(format!(
            "outage drill: the upstream {} for {} s; {} warm keys",
            self.mood.verb(),
            OUTAGE.as_secs(),
            self.warm
        ));
        for (phase, notes) in &self.load {
            let phase = format!("{phase:?}").to_lowercase();
            table.row(format!("{phase}: warm answers"), notes.warm.count());
            table.row("  of them", counts(&notes.kinds));
            table.row("  errors", notes.errors.len());
            table.row("  time, p50 / p99 / max", notes.warm.ranks());
            let statuses = counts(&notes.statuses);
            table.row(format!("{phase}: cold answers by status"), statuses);
            table.row("  time, p50 / p99 / max", notes.cold.ranks());
        }
        let Outage { sent, accepts, .. } = self.outage;
        table.row(
            "outage: requests sent, connections accepted",
            format!("{sent}, {accepts}"),
        );
        let [until_fresh, until_end] = self.recovery.requests;
        let label = "return: upstream requests until all is fresh";
        table.row(label, until_fresh);
        table.row("  and until the end", until_end);
        let closed_after = format!("{:?}", self.recovery.closed_after);
        table.row("return: breaker closed after", closed_after);
        let fresh_after = format!("{:?}", self.recovery.fresh_after);
        table.row("return: all warm keys fresh after", fresh_after);
        table.row("most of a key in any 60 s (budget 600)", self.busiest[0]);
        table.row("most of a key in any 1 s (budget 20)", self.busiest[1]);
        table.print();
    }

    /// No warm key gets an error or a slow answer.
    fn check_answers(&self) {
        for (phase, notes) in &self.load {
            // After the return, a crowd competes for the budget, and the stale
            // bound may have passed.
            let errors = match phase {
                Phase::Before | Phase::Outage => notes.errors.first(),
                Phase::After | Phase::Over => None,
            };
            assert_eq!(errors, None, "{phase:?}");
            let ranks = notes.warm.ranks();
            assert!(notes.warm.max() < WARM_BOUND, "{phase:?}: {ranks}");
        }
        let outage = &self.load[&Phase::Outage];
        let answered = "a dead upstream has answered";
        assert_eq!(outage.kinds.get("fetched"), None, "{answered}");
        assert_eq!(outage.statuses.get(&404), None, "{answered}");
        // There was an outage.
        let stale = outage.kinds.get("stale-if-error").copied().unwrap_or(0);
        assert!(stale > 50 && outage.warm.count() > 100, "{outage:?}");
    }

    /// The dead upstream gets few requests, and none gets more than its budget.
    fn check_outage(&self) {
        let Outage {
            seconds,
            sent,
            accepts,
            ref breaker,
        } = self.outage;
        assert_ne!(breaker, "closed", "the breaker has not opened");
        let most = UNTIL_OPEN + PROBES_A_SECOND * seconds;
        assert!(
            sent <= most && accepts <= most,
            "{sent} sent, {accepts} accepted"
        );
        let [minute, second] = self.busiest;
        assert!(
            minute <= PER_MINUTE && second <= PER_SECOND,
            "{minute}, {second}"
        );
    }
}

impl Outage {
    /// Lets it last, with a new block in the middle.
    async fn measure(gateway: &Gateway, front: &Front, sandbox: &Sandbox) -> Self {
        let down = Instant::now();
        let before = (sent(gateway).await, front.accepts());
        sleep(OUTAGE / 2).await;
        sandbox.advance(1);
        sleep(OUTAGE / 2).await;
        Self {
            breaker: gateway.status()["upstream"]["breaker"]["state"].clone(),
            sent: sent(gateway).await - before.0,
            accepts: front.accepts() - before.1,
            seconds: down.elapsed().as_secs() as usize + 1,
        }
    }
}

pub(crate) fn counts<K: std::fmt::Display>(counts: &BTreeMap<K, usize>) -> String {
    let counts = counts.iter().map(|(what, count)| format!("{what} {count}"));
    counts.collect::<Vec<_>>().join(", ")
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
        mood.verb()
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
pub(crate) async fn fill(gateway: &Gateway, warm: &[String]) {
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
