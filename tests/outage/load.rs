//! The load: connections that ask for warm keys at a steady pace, one that asks
//! for what nobody has asked for before, and a crowd of such that comes when the
//! upstream does. What they get is noted by phase.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::figures::Times;
use crate::support::client::request;
use crate::support::wire::{Answer, Wire};

/// No answer may take so long: the sum of the deadlines of one is half of it.
pub(crate) const HANG: Duration = Duration::from_secs(15);
/// Connections that ask for what is warm.
const CLIENTS: usize = 8;
/// Between the requests of one connection.
const PACE: Duration = Duration::from_millis(20);
/// Between requests for what is cold.
const COLD_PACE: Duration = Duration::from_millis(200);

/// Connections that come with the upstream's return, and what each asks for:
/// more at once than the budget allows, and all of it cold.
const CROWD: usize = 32;
const CROWD_ASKS: usize = 6;

/// Where the drill has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Before,
    Outage,
    After,
    Over,
}

/// What came in one phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    pub(crate) warm: Times,
    pub(crate) cold: Times,
    /// Answers for warm keys, by how they came about.
    pub(crate) kinds: BTreeMap<&'static str, usize>,
    /// Answers for cold keys, by status.
    pub(crate) statuses: BTreeMap<u16, usize>,
    /// Warm keys' errors.
    pub(crate) errors: Vec<String>,
}

pub(crate) type Book = Arc<Mutex<BTreeMap<Phase, Notes>>>;

/// Load until the phase is [`Phase::Over`].
pub(crate) fn start(at: SocketAddr, warm: &[String], phase: &watch::Sender<Phase>) -> Load {
    let book = Book::default();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        // Each goes round from another place, so that all keys are asked for
        // evenly.
        let (first, last) = warm.split_at(number * warm.len() / CLIENTS);
        let warm = [last, first].concat();
        clients.spawn(ask_for_warm(at, warm, phase.subscribe(), book.clone()));
    }
    clients.spawn(ask_for_cold(at, phase.subscribe(), book.clone()));
    for number in 0..CROWD {
        clients.spawn(come_back(at, number, phase.subscribe(), book.clone()));
    }
    Load { book, clients }
}

pub(crate) struct Load {
    book: Book,
    clients: JoinSet<()>,
}

impl Load {
    /// Waits for the clients' end, and answers what they have noted.
    pub(crate) async fn end(mut self) -> BTreeMap<Phase, Notes> {
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        self.book.lock().unwrap().clone()
    }
}

async fn ask_for_warm(
    at: SocketAddr,
    warm: Vec<String>,
    phase: watch::Receiver<Phase>,
    book: Book,
) {
    let mut wire = Wire::connect(at, None).await.unwrap();
    for target in warm.iter().cycle() {
        let asked = *phase.borrow();
        if asked == Phase::Over {
            return;
        }
        let (answer, took) = ask(&mut wire, target).await;
        let answered = *phase.borrow();
        note(&book, (asked, answered), |notes| {
            notes.warm.add(took);
            *notes.kinds.entry(kind(&answer)).or_default() += 1;
            if answer.status != 200 {
                let error = format!("{target}: {} {:?}", answer.status, answer.head);
                notes.errors.push(error);
            }
        });
        sleep(PACE).await;
    }
}

async fn ask_for_cold(at: SocketAddr, phase: watch::Receiver<Phase>, book: Book) {
    let mut wire = Wire::connect(at, None).await.unwrap();
    for number in 0.. {
        if *phase.borrow() == Phase::Over {
            return;
        }
        cold(&mut wire, &format!("c-{number}"), &phase, &book).await;
        sleep(COLD_PACE).await;
    }
}

/// One of the crowd. It comes back when it is told to, as good clients do.
async fn come_back(at: SocketAddr, client: usize, mut phase: watch::Receiver<Phase>, book: Book) {
    let back = phase.wait_for(|phase| *phase >= Phase::After).await.is_ok();
    assert!(back, "the drill has gone away");
    let mut wire = Wire::connect(at, None).await.unwrap();
    for number in 0..CROWD_ASKS {
        let token = format!("c{client}-{number}");
        while let Some(wait) = cold(&mut wire, &token, &phase, &book).await {
            if *phase.borrow() == Phase::Over {
                return;
            }
            sleep(wait).await;
        }
    }
}

/// Asks for what there is not; answers how long to wait where that was refused.
async fn cold(
    wire: &mut Wire,
    token: &str,
    phase: &watch::Receiver<Phase>,
    book: &Book,
) -> Option<Duration> {
    let target = format!("/ordinals/v1/brc-20/tokens/{token}");
    let asked = *phase.borrow();
    let (answer, took) = ask(wire, &target).await;
    let answered = *phase.borrow();
    note(book, (asked, answered), |notes| {
        notes.cold.add(took);
        *notes.statuses.entry(answer.status).or_default() += 1;
    });
    match answer.status {
        404 => {
            assert_eq!(answer.body, br#"{"error":"Not found"}"#);
            None
        }
        502..=504 => {
            check_refusal(&answer);
            let seconds = answer.head.field("retry-after").map(str::parse);
            Some(Duration::from_secs(seconds.map_or(1, Result::unwrap)))
        }
        other => panic!("a cold key gets {other}: {answer:?}"),
    }
}

/// Notes an answer by the phases in which it was asked for and came. What began
/// before the outage may still have been answered by the upstream, and so may
/// what ended after it.
fn note(book: &Book, (asked, answered): (Phase, Phase), write: impl FnOnce(&mut Notes)) {
    let phase = match (asked, answered) {
        (Phase::Before, _) => Phase::Before,
        (_, Phase::Over) => Phase::After,
        (_, answered) => answered,
    };
    write(book.lock().unwrap().entry(phase).or_default());
}

/// Asks, and waits for the answer, which must come.
pub(crate) async fn ask(wire: &mut Wire, target: &str) -> (Answer, Duration) {
    let began = Instant::now();
    wire.send(request("GET", target, &[])).await.unwrap();
    let answer = timeout(HANG, wire.answer("GET")).await;
    let answer = answer.unwrap_or_else(|_elapsed| panic!("hangs: {target}"));
    let answer = answer.unwrap_or_else(|broken| panic!("{target}: {broken:?}"));
    (answer, began.elapsed())
}

/// How an answer came about, by its `cache-status`.
pub(crate) fn kind(answer: &Answer) -> &'static str {
    let cache_status = answer.head.field("cache-status").unwrap_or("");
    if cache_status.contains("detail=stale-if-error") {
        "stale-if-error"
    } else if cache_status.contains("; hit; ttl=-") {
        "hit, stale"
    } else if cache_status.contains("; hit") {
        "hit"
    } else if cache_status.contains("fwd-status=200") {
        "fetched"
    } else {
        "none"
    }
}

/// Checks a refusal: a problem document, with `retry-after` on a 503.
pub(crate) fn check_refusal(answer: &Answer) {
    let head = &answer.head;
    assert!((502..=504).contains(&answer.status), "{answer:?}");
    let media = head.field("content-type");
    assert_eq!(media, Some("application/problem+json"), "{answer:?}");
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["status"], answer.status);
    assert!(
        problem["error"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    if answer.status == 503 {
        let seconds = head.field("retry-after").and_then(|s| s.parse().ok());
        assert!(
            seconds.is_some_and(|seconds: u64| seconds >= 1),
            "{answer:?}"
        );
    }
}
