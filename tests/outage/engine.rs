//! The drill with the engine as what fails: replicas share a budget through it, and it
//! ends, or says nothing, and comes back. No client sees any of it: without the engine a
//! replica is an ordgate with a part of the budget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordgate::sandbox::{Sandbox, Settings};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::drill::{PER_SECOND, WARM_BOUND, config, counts, fill, warm};
use crate::figures::Table;
use crate::front::{Front, Mood};
use crate::load::{self, Notes, Phase};
use crate::servers::{Server, is_installed};
use crate::support::gateway::{Source, merge};
use crate::support::{Gateway, Setup};

/// How long the load lasts before the engine fails, without it, and after.
const BEFORE: Duration = Duration::from_secs(2);
const OUTAGE: Duration = Duration::from_secs(4);
const AFTER: Duration = Duration::from_secs(2);
/// The budget of which a replica has as much without the engine as the only ordgate has in
/// the other drills: half of it is divided among two replicas.
const WHOLE: usize = 4 * PER_SECOND;

/// A replica under load, whose engine fails.
pub(crate) async fn play(mood: Mood) {
    if !is_installed() {
        return;
    }
    let mut engine = Server::start();
    let sandbox = Sandbox::new(Settings::default());
    let front = Front::start(&sandbox).await;
    let gateway = gateway(&front, &engine);
    let warm = warm(&sandbox);
    fill(&gateway, &warm).await;
    answers(&gateway, true).await;
    let phase = watch::Sender::new(Phase::Before);
    let load = load::start(gateway.public, &warm, &phase);
    sleep(BEFORE).await;

    match mood {
        Mood::Refuses => engine.kill(),
        Mood::Mute | Mood::Well => engine.stop(),
    }
    phase.send_replace(Phase::Outage);
    answers(&gateway, false).await;
    let began = Instant::now();
    sandbox.advance(1);
    sleep(OUTAGE).await;
    let lasted = began.elapsed();
    assert_eq!(gateway.admin("/readyz").await.status, 200);

    // The crowd comes with the engine.
    match mood {
        Mood::Refuses => engine.start_again(),
        Mood::Mute | Mood::Well => engine.proceed(),
    }
    phase.send_replace(Phase::After);
    answers(&gateway, true).await;
    sleep(AFTER).await;
    phase.send_replace(Phase::Over);
    let load = load.end().await;
    let second = front.arrivals().busiest(Duration::from_secs(1));
    gateway.end().await;

    let title = format!(
        "outage drill: the engine {} for {lasted:.1?}; {} warm keys",
        mood.verb(),
        warm.len()
    );
    print(title, &load, second);
    check(&load, second);
}

/// One of two replicas.
fn gateway(front: &Front, engine: &Server) -> Gateway {
    let mut config = config(front, "10s");
    // With a limit for each minute, a replica that starts waits until nothing counts any
    // more that another could have sent before it.
    let budget = format!(
        "shared.replicas = 2
        upstream.requests_per_minute = \"unlimited\"
        upstream.requests_per_second = {WHOLE}"
    );
    merge(&mut config, &budget);
    let source = Source {
        config,
        keys: "outage-drill-key-one".to_owned(),
        engine: engine.url(),
        ..Source::default()
    };
    Setup::reading(&Arc::new(Mutex::new(source))).start()
}

fn print(title: String, load: &BTreeMap<Phase, Notes>, second: usize) {
    let mut table = Table::new(title);
    for (phase, notes) in load {
        let phase = format!("{phase:?}").to_lowercase();
        table.row(format!("{phase}: warm answers"), counts(&notes.kinds));
        table.row("  errors", notes.errors.len());
        table.row("  time, p50 / p99 / max", notes.warm.ranks());
        let statuses = counts(&notes.statuses);
        table.row(format!("{phase}: cold answers by status"), statuses);
        table.row("  time, p50 / p99 / max", notes.cold.ranks());
    }
    table.row("most in any 1 s (floor 20)", second);
    table.print();
}

/// No warm key gets an error or a slow answer, and what is cold is fetched meanwhile.
fn check(load: &BTreeMap<Phase, Notes>, second: usize) {
    for (phase, notes) in load {
        // The crowd that comes last competes for the budget.
        let errors = notes.errors.first().filter(|_| *phase < Phase::After);
        assert_eq!(errors, None, "{phase:?}");
        assert!(notes.warm.max() < WARM_BOUND, "{phase:?}");
    }
    let cold = &load[&Phase::Outage].statuses;
    let answered = cold.get(&404).copied().unwrap_or(0);
    assert!(answered > 5, "{cold:?}");
    assert!(second <= PER_SECOND, "{second} in a second");
}

/// Waits until the status page says whether the engine answers.
async fn answers(gateway: &Gateway, expected: bool) {
    let began = Instant::now();
    loop {
        let status = gateway.status()["shared"]["engine"]["status"].clone();
        if (status == "answers") == expected {
            return;
        }
        assert!(began.elapsed() < load::HANG, "{status}");
        sleep(Duration::from_millis(20)).await;
    }
}
