//! What all tasks of the run share: the sandbox, the keys and budgets in force,
//! counts, and violations.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ordgate::sandbox::{Sandbox, Settings};
use tokio::sync::watch;
use tokio::time::Instant;

use super::questions::Questions;
use crate::arrivals::Arrivals;
use crate::dice::Dice;
use crate::figures::{Table, Times};

/// The sum of a request's deadlines, as the operator configures them: a queue
/// for a place and one for the budget, the upstream's whole time, the first
/// probe and a second; each twice, for what was overtaken by a reorg on its way
/// is asked for again. The rest is for a machine that is busy otherwise.
pub(crate) const BOUND: Duration = Duration::from_secs(15);
/// The longest wait of the run.
pub(crate) const HANG: Duration = Duration::from_secs(40);
/// How long a withdrawn key may still be seen: in requests that were under way.
const WITHDRAWN: Duration = Duration::from_secs(8);
/// How long before its arrival a request may have been granted.
const UNDER_WAY: Duration = Duration::from_secs(3);
/// A front that was frozen has read within this what was sent to it meanwhile.
const THAW: Duration = Duration::from_secs(1);
/// The number of violations that are kept.
const MOST_VIOLATIONS: usize = 30;

/// The prefix of all keys: no answer may contain it.
pub(crate) const SECRET: &str = "chaos-secret-";
/// A word in all faulty bodies: no 200 may contain it.
pub(crate) const HOSTILE: &str = "HOSTILE";
/// A word in requests that do not validate: none may reach the upstream.
pub(crate) const INVALID: &str = "zzbad";

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) began: Instant,
    pub(crate) sandbox: Sandbox,
    pub(crate) questions: Questions,
    /// Where the gateway is; nowhere between two servers.
    pub(crate) listener: watch::Sender<Option<Arc<Listener>>>,
    /// Whether the clients are to go.
    pub(crate) over: watch::Sender<bool>,
    pub(crate) violations: Mutex<Vec<String>>,
    turns_away: AtomicBool,
    pub(crate) arrivals: Arrivals,
    counts: Mutex<BTreeMap<&'static str, BTreeMap<String, u64>>>,
    times: Mutex<Times>,
    keys: Mutex<HashMap<String, Option<Instant>>>,
    budgets: Mutex<Vec<Budget>>,
    freezes: Mutex<Vec<Freeze>>,
    effects: Mutex<BTreeMap<Kind, u64>>,
    /// Digests of the bodies that each token has had.
    given: Mutex<HashMap<String, HashSet<u64>>>,
    digest: RandomState,
}

/// The public side of one server.
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    /// Where it uses TLS.
    pub(crate) tls: SocketAddr,
    /// When it began to drain.
    pub(crate) drained: OnceLock<Instant>,
}

/// What a key may be used for, and when that was in force at the most.
struct Budget {
    from: Instant,
    until: Option<Instant>,
    per_minute: usize,
    per_second: usize,
}

/// A time in which a front read nothing that was sent to it.
struct Freeze {
    front: u64,
    from: Instant,
    until: Option<Instant>,
}

/// Faults that each run must see take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A request was sent while the front was frozen, and read after that.
    Freeze,
    /// A connection or a stream above the cap was closed, or a request on it got
    /// 503.
    ConnectionCap,
    /// A request was sent on a connection that did not answer any more.
    SilentConnection,
    /// The gateway gave up a body that stopped in the middle.
    StalledBody,
}

/// All there are.
const KINDS: [Kind; 4] = [
    Kind::Freeze,
    Kind::ConnectionCap,
    Kind::SilentConnection,
    Kind::StalledBody,
];

impl World {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let sandbox = Sandbox::new(Settings {
            seed,
            blocks: 80,
            largest_block: 60,
            ..Settings::default()
        });
        Arc::new(Self {
            seed,
            began: Instant::now(),
            questions: Questions::about(&sandbox),
            sandbox,
            listener: watch::Sender::new(None),
            over: watch::Sender::new(false),
            violations: Mutex::default(),
            turns_away: AtomicBool::new(false),
            arrivals: Arrivals::default(),
            counts: Mutex::default(),
            times: Mutex::default(),
            keys: Mutex::default(),
            budgets: Mutex::default(),
            freezes: Mutex::default(),
            effects: Mutex::default(),
            given: Mutex::default(),
            digest: RandomState::new(),
        })
    }

    /// The dice of one who takes part, or of one connection of theirs.
    pub(crate) fn dice(&self, who: &str, number: u64) -> Dice {
        let name = who.bytes().fold(0_u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        Dice::new(self.seed ^ name << 32 ^ number << 8)
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// The gateway's listener, once there is one; `None` where all is over.
    pub(crate) async fn listener(&self) -> Option<Arc<Listener>> {
        let (mut listener, mut over) = (self.listener.subscribe(), self.over.subscribe());
        tokio::select! {
            open = listener.wait_for(Option::is_some) => open.ok().and_then(|open| open.clone()),
            _ = over.wait_for(|over| *over) => None,
        }
    }

    /// Records a violation.
    pub(crate) fn violation(&self, what: impl Into<String>) {
        let mut violations = self.violations.lock().unwrap();
        let what = what.into();
        let end = what.len().min(600);
        let what = what.get(..end).unwrap_or(&what);
        let at = self.began.elapsed().as_secs_f64();
        if violations.len() < MOST_VIOLATIONS {
            violations.push(format!("{at:.3} s: {what}"));
        }
    }

    /// Counts one of a kind.
    pub(crate) fn count(&self, kind: &'static str, name: impl Into<String>) {
        let mut counts = self.counts.lock().unwrap();
        *counts
            .entry(kind)
            .or_default()
            .entry(name.into())
            .or_default() += 1;
    }

    /// The names of a kind that were counted.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        let counts = self.counts.lock().unwrap();
        let names = counts.get(kind).into_iter().flat_map(BTreeMap::keys);
        names.cloned().collect()
    }

    /// From now on the gateway may have too few connections for all clients.
    pub(crate) fn turn_away(&self) {
        self.turns_away.store(true, SeqCst);
    }

    /// Whether it may have closed a connection because there were too many: over TLS
    /// without an answer, and with one that is no HTTP/2 in cleartext.
    pub(crate) fn may_turn_away(&self) -> bool {
        self.turns_away.load(SeqCst)
    }

    /// A fault of this kind has taken effect.
    pub(crate) fn effect(&self, kind: Kind) {
        let mut effects = self.effects.lock().unwrap();
        *effects.entry(kind).or_default() += 1;
    }

    /// Whether a fault of this kind has not taken effect yet. Such faults are injected
    /// first, so that a run of a minute covers all.
    pub(crate) fn is_missing(&self, kind: Kind) -> bool {
        !self.effects.lock().unwrap().contains_key(&kind)
    }

    /// How often each kind of fault has taken effect.
    pub(crate) fn effects(&self) -> Vec<(Kind, u64)> {
        let effects = self.effects.lock().unwrap();
        let count = |kind| (kind, effects.get(&kind).copied().unwrap_or(0));
        KINDS.map(count).to_vec()
    }

    /// This front is about to read nothing.
    pub(crate) fn freeze(&self, front: u64) {
        self.freezes.lock().unwrap().push(Freeze {
            front,
            from: Instant::now(),
            until: None,
        });
    }

    /// It is about to read again.
    pub(crate) fn thaw(&self, front: u64) {
        let mut freezes = self.freezes.lock().unwrap();
        for freeze in freezes.iter_mut().filter(|freeze| freeze.front == front) {
            freeze.until.get_or_insert_with(Instant::now);
        }
    }

    /// Since when what arrived at this moment may have been in the receive buffer
    /// of a front.
    fn sent_since(&self, arrived: Instant) -> Instant {
        let freezes = self.freezes.lock().unwrap();
        let before = freezes.iter().filter(|freeze| {
            let until = freeze.until.unwrap_or(arrived);
            (freeze.from..until + THAW).contains(&arrived)
        });
        before.map(|freeze| freeze.from).fold(arrived, Instant::min)
    }

    /// So long has an answer taken.
    pub(crate) fn took(&self, time: Duration) {
        self.times.lock().unwrap().add(time);
    }

    /// These keys are in force from now on, and no others.
    pub(crate) fn use_keys(&self, present: &[String]) {
        let mut keys = self.keys.lock().unwrap();
        for withdrawn in keys.values_mut() {
            withdrawn.get_or_insert_with(Instant::now);
        }
        for key in present {
            keys.insert(key.clone(), None);
        }
    }

    /// A request has come to the upstream with this key, from the server that has
    /// this name in `via`: the key has to be one of ours, and is counted.
    pub(crate) fn arrive(&self, key: &str, server: &str) {
        let known = self.keys.lock().unwrap().get(key).copied();
        match known {
            Some(None) => {}
            Some(Some(at)) if at + WITHDRAWN > self.sent_since(Instant::now()) => {}
            Some(Some(_)) => self.violation("a key was used long after it was withdrawn"),
            None => self.violation("a request came up without a key of ours"),
        }
        // A server that was started again knows nothing of what the one before
        // has spent, whose last requests may arrive after its end.
        self.arrivals.add(&format!("{server} {key}"));
    }

    /// This budget is about to be in force.
    pub(crate) fn budget_from_now(&self, per_minute: usize, per_second: usize) {
        self.budgets.lock().unwrap().push(Budget {
            from: Instant::now(),
            until: None,
            per_minute,
            per_second,
        });
    }

    /// Only the last budget is in force any more.
    pub(crate) fn budget_settled(&self) {
        let now = Instant::now();
        let mut budgets = self.budgets.lock().unwrap();
        let last = budgets.len() - 1;
        for budget in &mut budgets[..last] {
            budget.until.get_or_insert(now);
        }
    }

    /// Holds what has come against the budgets: whatever came last within a
    /// window was granted under one that was in force then or shortly before.
    pub(crate) fn check_budgets(&self) -> (usize, usize) {
        let budgets = self.budgets.lock().unwrap();
        let mut most = (0, 0);
        for (key, arrivals) in self.arrivals.keys() {
            let mut oldest = [0; 2];
            for (place, at) in arrivals.iter().enumerate() {
                let spans = [Duration::from_secs(60), Duration::from_secs(1)];
                let mut counts = [0; 2];
                for (oldest, (span, count)) in
                    oldest.iter_mut().zip(spans.into_iter().zip(&mut counts))
                {
                    while arrivals[*oldest] + span <= *at {
                        *oldest += 1;
                    }
                    *count = place + 1 - *oldest;
                }
                let sent = self.sent_since(*at);
                let in_force = budgets.iter().filter(|budget| {
                    budget.from <= *at && budget.until.is_none_or(|until| until + UNDER_WAY >= sent)
                });
                let bounds = in_force.fold((0, 0), |most, budget| {
                    (most.0.max(budget.per_minute), most.1.max(budget.per_second))
                });
                let [minute, second] = counts;
                most = (most.0.max(minute), most.1.max(second));
                if minute > bounds.0 || second > bounds.1 {
                    // Which key it was is told by its server and its place.
                    let key = key.replace(SECRET, "");
                    self.violation(format!(
                        "key {key}: {minute} in a minute and {second} in a second, of {bounds:?}, at {:?}",
                        *at - self.began
                    ));
                }
            }
        }
        most
    }

    /// The upstream gives this body for a token.
    pub(crate) fn give(&self, ticker: &str, body: &[u8]) {
        let digest = self.digest.hash_one(body);
        let mut given = self.given.lock().unwrap();
        match given.get_mut(ticker) {
            Some(bodies) => {
                bodies.insert(digest);
            }
            None => {
                given.insert(ticker.to_owned(), HashSet::from([digest]));
            }
        }
    }

    /// Whether it ever has.
    pub(crate) fn was_given(&self, ticker: &str, body: &[u8]) -> bool {
        let digest = self.digest.hash_one(body);
        let given = self.given.lock().unwrap();
        given.get(ticker).is_some_and(|all| all.contains(&digest))
    }

    /// All that was counted.
    pub(crate) fn table(&self, title: &str) -> Table {
        let mut table = Table::new(title);
        for (kind, counts) in &*self.counts.lock().unwrap() {
            let all: u64 = counts.values().sum();
            table.row(kind, all);
            for (name, count) in counts {
                table.row(format!("  {name}"), count);
            }
        }
        for (kind, count) in self.effects() {
            table.row(format!("{kind:?}"), count);
        }
        let (minute, second) = self.check_budgets();
        table.row(
            "most of a key in any 60 s, in any 1 s",
            format!("{minute}, {second}"),
        );
        let times = self.times.lock().unwrap();
        table.row("time of answers, p50 / p99 / max", times.ranks());
        table
    }
}
