//! A model of the keys' budgets, run beside [`Keys`]: it records each request that
//! [`Keys`] permits and checks the bounds that must hold.

mod answers;
mod ends;
mod reload;
mod send;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::prop_assert;
use proptest::test_runner::TestCaseError;

use super::Step;
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::upstream::admission::Denied;
use crate::upstream::admission::budget::{ARRIVAL_LIMIT, SECOND_WINDOW};
use crate::upstream::admission::budgets::{BudgetOwner, Budgets, REMEMBERED};
use crate::upstream::admission::limit_report::LimitWindow;
use crate::upstream::admission::{Priority, Rates, RequestPriority};
use crate::upstream::connection::Connection;
use crate::upstream::connection::given_up::GivenUpRequests;
use crate::upstream::keys::{ApiKey, BudgetPermit, Keys};

/// The keys that an upstream may have.
const KEYS: [&str; 3] = ["first-key-of-ours", "second-key", "third-key"];
/// The number of servers. One that gets requests without a key has a budget of its own.
pub(super) const SERVERS: usize = 2;
/// The number of budgets: one for each key, then one for each server.
pub(super) const BUDGETS: usize = KEYS.len() + SERVERS;
/// The most upstreams that are configured at once.
pub(super) const MAX_UPSTREAMS: usize = 3;
/// Probes a minute that each upstream reserves budget for.
const PROBES: u32 = 3;
/// [`Keys`] keeps at least this many limit reports for a budget.
const MAX_REPORTS: usize = 8;

type Outcome = Result<(), TestCaseError>;

/// The keys whose bits are set; two keys are listed in reverse order.
fn list(bits: u8) -> Vec<ApiKey> {
    let chosen = (0..KEYS.len()).filter(|at| bits & 1 << at != 0);
    let mut names: Vec<_> = chosen.map(|at| KEYS[at]).collect();
    if bits.count_ones() == 2 {
        names.reverse();
    }
    ApiKey::list(&names.join(",")).unwrap_or_default()
}

fn server(number: usize) -> BudgetOwner {
    BudgetOwner::Server(format!("server-{number}:80").into())
}

/// Rates per minute and per second; 0 is unlimited.
fn rates((minute, second): (u32, u32)) -> Rates {
    Rates::of(minute, second)
}

/// A request, and when the upstream may count it. Times are milliseconds since the
/// start of the model.
pub(super) struct ModelRequest {
    pub(super) budget: usize,
    upstream: usize,
    server: usize,
    /// When it was permitted.
    pub(super) from: u64,
    /// When it ended; `None` while the upstream may still count it later.
    pub(super) to: Option<u64>,
    /// Until when it counts as unanswered; `None` while it is under way.
    unanswered: Option<u64>,
}

impl ModelRequest {
    /// Whether [`Keys`] still counts it in its upstream's share. An upstream that has
    /// not had the key for [`REMEMBERED`] is forgotten; only a request that was given
    /// up lasts as long.
    fn is_remembered(&self, now: u64) -> bool {
        Duration::from_millis(now - self.from) < REMEMBERED
    }
}

/// A request that is under way.
struct RequestUnderWay {
    permit: BudgetPermit,
    connection: Connection,
    /// Its index in the history.
    at: usize,
    /// When it is answered, or given up if its server is frozen.
    due: u64,
}

/// A request that was given up and that the upstream may still count.
struct PendingArrival {
    connection: Connection,
    /// Its index in the history.
    at: usize,
    /// When it was given up.
    since: u64,
}

/// A reported limit that is in force.
struct ActiveReport {
    /// How many more requests may be permitted.
    left: u64,
    until: u64,
    window: LimitWindow,
    end_is_known: bool,
}

/// The suspension of a key, after a refusal or a spent quota.
struct KeySuspension {
    until: u64,
    /// The request that tries the key, as its index in the history.
    tried_by: Option<usize>,
    is_refused: bool,
}

/// What an upstream's answers have reported about a key.
#[derive(Default)]
struct ModelKeyState {
    cooldown_until: u64,
    suspension: Option<KeySuspension>,
    /// Since when the key is not configured.
    removed_at: Option<u64>,
}

/// An upstream that is configured, or was.
struct ModelUpstream {
    keys: Arc<Keys>,
    /// The keys that it has, as bits.
    bits: u8,
    server: usize,
    rates: (u32, u32),
    is_configured: bool,
    states: [ModelKeyState; BUDGETS],
    /// By server: the requests that were given up.
    given_up: [Arc<GivenUpRequests>; SERVERS],
    /// By server: the connection that requests share.
    shared: [Connection; SERVERS],
}

impl ModelUpstream {
    /// Whether its requests may count against this budget.
    fn has(&self, budget: usize) -> bool {
        self.is_configured
            && match self.bits {
                0 => budget == KEYS.len() + self.server,
                bits => budget < KEYS.len() && bits & 1 << budget != 0,
            }
    }
}

/// Upstreams with their keys, the servers, and the requests sent so far.
pub(super) struct BudgetModel {
    clock: Clock,
    begun: Moment,
    budgets: Arc<Budgets>,
    /// All upstreams, also those that a reload removed.
    upstreams: Vec<ModelUpstream>,
    /// The configured upstreams, as indexes in `upstreams`.
    entries: [Option<usize>; MAX_UPSTREAMS],
    under_way: Vec<RequestUnderWay>,
    given_up: Vec<PendingArrival>,
    /// The servers that are stopped.
    is_frozen: [bool; SERVERS],
    pub(super) history: Vec<ModelRequest>,
    reports: [Vec<ActiveReport>; BUDGETS],
    /// By budget: the highest bounds, per minute and per second, that were in force
    /// when a request was permitted.
    pub(super) loosest: [(usize, usize); BUDGETS],
}

impl BudgetModel {
    pub(super) fn new() -> Self {
        let clock = Clock::manual();
        let mut model = Self {
            begun: clock.now(),
            clock,
            budgets: Budgets::new(),
            upstreams: Vec::new(),
            entries: [None; MAX_UPSTREAMS],
            under_way: Vec::new(),
            given_up: Vec::new(),
            is_frozen: [false; SERVERS],
            history: Vec::new(),
            reports: Default::default(),
            loosest: [(0, 0); BUDGETS],
        };
        for entry in 0..2 {
            model.add(entry, 0, 0b11, (20, 4));
        }
        model
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.begun).as_millis()).unwrap()
    }

    pub(super) fn step(&mut self, step: &Step) -> Outcome {
        let count = self.under_way.len();
        match step {
            Step::Pause(millis) => self.pause(*millis),
            Step::Send(entry, priority, durations) => {
                for duration in durations {
                    self.send(*entry, *priority, *duration)?;
                }
            }
            Step::Fail(at) if count > 0 => self.fail(at % count),
            Step::Answer(at, answer) if count > 0 && self.runs(at % count) => {
                self.answer(at % count, answer);
            }
            Step::GiveUp(at) if count > 0 => self.give_up(at % count),
            Step::Retry(at, duration) if count > 0 => {
                let upstream = self.history[self.under_way[at % count].at].upstream;
                self.give_up(at % count);
                let entry = self.entries.iter().position(|one| *one == Some(upstream));
                if let Some(entry) = entry {
                    self.send(entry, Priority::Miss, *duration)?;
                }
            }
            Step::Reload(entry, change, keys, minute, second) => {
                self.reload(*entry, *change, *keys, (*minute, *second));
            }
            Step::Freeze(server) => self.is_frozen[*server] = true,
            Step::Thaw(server) => self.is_frozen[*server] = false,
            Step::Close(at) => self.close_given_up(*at),
            Step::Restart(server) => self.restart(*server),
            Step::Fail(_) | Step::GiveUp(_) | Step::Answer(..) | Step::Retry(..) => {}
        }
        Ok(())
    }

    pub(super) fn end_all(&mut self) {
        for server in 0..SERVERS {
            self.restart(server);
        }
        assert!(self.under_way.is_empty() && self.given_up.is_empty());
        let given_up = self.upstreams.iter().flat_map(|one| &one.given_up);
        assert!(given_up.into_iter().all(|requests| requests.len() == 0));
        // An answer limits how much later an earlier request can arrive.
        self.clock.advance(ARRIVAL_LIMIT);
    }

    /// Checks the wait that a denied request gets: after it, the request is permitted
    /// if no other was sent meanwhile.
    pub(super) fn waits_are_true(&mut self) -> Outcome {
        self.end_all();
        let own = Priority::ALL.map(RequestPriority::own);
        let client = RequestPriority::of(Client::V4(0), Priority::Miss);
        for at in self.entries.into_iter().flatten() {
            let keys = self.upstreams[at].keys.clone();
            for priority in own.into_iter().chain([client]) {
                // Each permit is dropped at once. Unlimited budgets permit any number.
                let mut denied = (0..200).map_while(|_| match keys.take(priority) {
                    Ok(_dropped) => Some(None),
                    Err(denied) => Some(Some(denied)),
                });
                let Some(Denied::SpentFor(wait)) = denied.find_map(|denied| denied) else {
                    continue;
                };
                prop_assert!(!wait.is_zero());
                self.clock.advance(wait);
                let denied = keys.take(priority).err();
                prop_assert!(denied.is_none(), "{priority:?} after {wait:?}: {denied:?}");
            }
        }
        Ok(())
    }
}

/// How long a request counts as unanswered after its end, in milliseconds, if it was
/// slow or given up.
fn unanswered_after_end() -> u64 {
    u64::try_from((ARRIVAL_LIMIT + SECOND_WINDOW).as_millis()).unwrap()
}
