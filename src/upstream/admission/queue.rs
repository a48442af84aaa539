//! Those who wait for the upstream: for a place among the requests under way,
//! or for budget. Whoever's turn it is tries; the others wait for their turn,
//! each no longer than its patience.
//!
//! Invariants: no wait is without a deadline; whoever goes, served or not,
//! wakes the next; whatever may let somebody pass calls [`AdmissionQueue::wake`].
//!
//! Deliberately absent: the order (`upstream::queue`), and what is tried.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::fair_order::{ClientShare, Full, LEAST_SHARED, Number, Queue};
use super::{Priority, RequestPriority};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::upstream::Failure;
use crate::upstream::endpoint::latency::Latency;

/// The line before one upstream.
pub struct AdmissionQueue {
    inner: Mutex<Inner>,
    /// How long those have waited who passed, by priority.
    waited: Mutex<[Latency; Priority::ALL.len()]>,
    /// How many slots the endpoint has that was asked last.
    slots: AtomicU32,
    /// How many requests the budget of all keys has for a second.
    a_second: AtomicU32,
    clock: Clock,
}

/// A slot that counts as a client's. It is given back when this is dropped; and
/// if it was [used](Slot::used), whoever waits is woken.
pub struct Slot {
    line: Arc<AdmissionQueue>,
    client: Option<Client>,
    is_used: bool,
}

struct Inner {
    queue: Queue,
    waiting: HashMap<Number, Arc<Waiting>>,
    /// Why whoever's turn it was could not pass, and when that was.
    held: Option<(Instant, Failure)>,
}

#[derive(Default)]
struct Waiting {
    woken: Notify,
    /// It has had to go for another.
    is_out: AtomicBool,
}

/// Why one cannot pass just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What it is told if it waits no longer.
    pub why: Failure,
    /// Until when.
    pub until: Until,
}

/// Until when one cannot pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// For so long at the least.
    After(Duration),
    /// Until a request that is under way ends.
    OneEnds,
    /// Waiting is of no use.
    Never,
}

/// A place in the line; it is left when this is dropped.
struct QueuePosition<'l> {
    line: &'l AdmissionQueue,
    wish: RequestPriority,
    number: Number,
    waiting: Arc<Waiting>,
    served: AtomicBool,
}

impl AdmissionQueue {
    /// Nobody waits, and so many may.
    pub fn new(most: usize, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                queue: Queue::new(most),
                waiting: HashMap::new(),
                held: None,
            }),
            waited: Mutex::default(),
            slots: AtomicU32::new(u32::MAX),
            a_second: AtomicU32::new(u32::MAX),
            clock,
        })
    }

    /// So many may wait from now on.
    pub fn bound(&self, most: usize) {
        self.inner().queue.bound(most);
    }

    /// Passes as soon as it is this one's turn and `attempt` lets it, within so
    /// long. One of the least priority does not wait, since it can do without.
    /// `attempt` is given a slot that counts as the client's, unless it is a
    /// probe, which needs none.
    ///
    /// # Errors
    /// Why it could not pass.
    pub async fn pass<T>(
        self: &Arc<Self>,
        wish: RequestPriority,
        patience: Duration,
        mut attempt: impl FnMut(Option<Slot>) -> Result<T, Hold>,
    ) -> Result<T, Failure> {
        let came = self.clock.now();
        let deadline = Instant::now() + patience;
        let waits = wish.priority != Priority::LookAhead;
        let (wish, slot) = {
            let mut inner = self.inner();
            let caller = inner.queue.account(wish.caller);
            let wish = RequestPriority { caller, ..wish };
            let goes = inner.queue.goes_first(wish, self.slots());
            (wish, goes.then(|| self.slot_in(&mut inner, wish)))
        };
        if let Some(slot) = slot {
            match attempt(slot) {
                Ok(passed) => {
                    self.passed(wish.priority, came);
                    return Ok(passed);
                }
                Err(hold) if !waits || !hold.ends_within(patience) => return Err(hold.why),
                Err(_) => {}
            }
        } else if !waits {
            return Err(Failure::TooManyInFlight);
        }
        let place = self.enter(wish)?;
        loop {
            let woken = place.waiting.woken.notified();
            tokio::pin!(woken);
            // From here on no waking is missed.
            woken.as_mut().enable();
            if place.waiting.is_out.load(Ordering::Acquire) {
                return Err(self.why(wish));
            }
            let mut until = deadline;
            let slot = {
                let mut inner = self.inner();
                let is_first = inner.queue.first(self.slots()) == Some(place.number);
                is_first.then(|| self.slot_in(&mut inner, wish))
            };
            if let Some(slot) = slot {
                match attempt(slot) {
                    Ok(passed) => {
                        place.served.store(true, Ordering::Relaxed);
                        self.passed(wish.priority, came);
                        return Ok(passed);
                    }
                    Err(hold) => {
                        let now = Instant::now();
                        self.inner().held = Some((now, hold.why.clone()));
                        if now >= deadline || !hold.ends_within(deadline - now) {
                            return Err(hold.why);
                        }
                        if let Until::After(pause) = hold.until {
                            until = now + pause;
                        }
                    }
                }
            } else if Instant::now() >= deadline {
                return Err(self.why(wish));
            }
            let _woken = timeout_at(until, woken).await;
        }
    }

    /// A slot that counts as a client's, whatever its share; for a request that
    /// has had its turn already.
    pub fn slot(self: &Arc<Self>, wish: RequestPriority) -> Option<Slot> {
        let mut inner = self.inner();
        let caller = inner.queue.account(wish.caller);
        self.slot_in(&mut inner, RequestPriority { caller, ..wish })
    }

    /// A slot that counts as nobody's, for a probe that needs one.
    pub fn probe_slot(self: &Arc<Self>) -> Slot {
        self.inner().queue.hold(None);
        Slot {
            line: self.clone(),
            client: None,
            is_used: false,
        }
    }

    /// A slot for what can do without: `None` where somebody waits, or it is more
    /// than its client's share.
    pub fn spare_slot(self: &Arc<Self>, client: Option<Client>) -> Option<Slot> {
        let mut inner = self.inner();
        let wish = RequestPriority {
            priority: Priority::LookAhead,
            caller: inner.queue.account(client),
        };
        let goes = inner.queue.goes_first(wish, self.slots());
        goes.then(|| self.slot_in(&mut inner, wish)).flatten()
    }

    fn slot_in(self: &Arc<Self>, inner: &mut Inner, wish: RequestPriority) -> Option<Slot> {
        if wish.priority == Priority::Probe {
            return None;
        }
        inner.queue.hold(wish.caller);
        Some(Slot {
            line: self.clone(),
            client: wish.caller,
            is_used: false,
        })
    }

    /// There are so many slots from now on, of which clients have shares.
    pub fn share_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    /// The budget has so many requests for a second from now on. A request that
    /// is not answered takes one of each second, so that one client's slow ones
    /// could take all: clients have shares of no more slots than that.
    pub fn share_second(&self, requests: u32) {
        let requests = requests.max(LEAST_SHARED);
        self.a_second.store(requests, Ordering::Relaxed);
    }

    fn slots(&self) -> u32 {
        let a_second = self.a_second.load(Ordering::Relaxed);
        self.slots.load(Ordering::Relaxed).min(a_second)
    }

    /// Counts a request that is paid from the budget for a client.
    pub fn charge(&self, client: Option<Client>) {
        let now = self.clock.now();
        let mut inner = self.inner();
        inner.queue.charge(client, now);
        // It may be another client's turn now.
        inner.wake(self.slots());
    }

    /// Whether a client has had little of the budget of late, so that the
    /// reserve is for it.
    pub fn is_light(&self, client: Client) -> bool {
        self.inner().queue.is_light(Some(client))
    }

    /// Whether a client may have one more request in flight.
    pub fn may_hold(&self, client: Option<Client>) -> bool {
        self.inner().queue.may_hold(client, self.slots())
    }

    /// Whether a request waits for its client's share of the slots alone.
    pub fn holds_back(&self) -> bool {
        self.inner().queue.holds_back(self.slots())
    }

    /// How many clients have had some of the budget of late, or want some.
    pub fn clients(&self) -> usize {
        self.inner().queue.clients()
    }

    /// The clients that have had the most of the budget of late, so many of
    /// them.
    pub fn heaviest(&self, most: usize) -> Vec<ClientShare> {
        let now = self.clock.now();
        self.inner().queue.heaviest(most, now)
    }

    /// Something has changed: whoever's turn it is may look again.
    pub fn wake(&self) {
        self.inner().wake(self.slots());
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.inner().queue.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How long of those of a priority who passed of late half, nine in ten and
    /// ninety-nine in a hundred have waited at the most.
    pub fn waited_of_late(&self, priority: Priority) -> [(f64, Option<Duration>); 3] {
        let now = self.clock.now();
        let waited = self.waited();
        [0.5, 0.9, 0.99].map(|share| (share, waited[priority.rank()].quantile(share, now)))
    }

    /// How long those have waited who passed, for each priority.
    pub fn waited(&self) -> MutexGuard<'_, [Latency; Priority::ALL.len()]> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passed(&self, priority: Priority, came: Moment) {
        let now = self.clock.now();
        self.waited()[priority.rank()].record(now.since(came), now);
    }

    fn enter(&self, wish: RequestPriority) -> Result<QueuePosition<'_>, Failure> {
        let mut inner = self.inner();
        let (number, out) = match inner.queue.enter(wish) {
            Ok(entered) => entered,
            Err(Full) => {
                drop(inner);
                return Err(self.why(wish));
            }
        };
        let waiting = Arc::<Waiting>::default();
        inner.waiting.insert(number, waiting.clone());
        if let Some(out) = out.and_then(|out| inner.waiting.remove(&out)) {
            out.is_out.store(true, Ordering::Release);
            out.woken.notify_one();
        }
        Ok(QueuePosition {
            line: self,
            wish,
            number,
            waiting,
            served: AtomicBool::new(false),
        })
    }

    /// Why a request leaves the queue that was not served.
    fn why(&self, wish: RequestPriority) -> Failure {
        let inner = self.inner();
        if !inner.queue.may_hold(wish.caller, self.slots()) {
            return Failure::TooManyInFlight;
        }
        match &inner.held {
            Some((at, Failure::Spent { retry_after })) => Failure::Spent {
                retry_after: retry_after.saturating_sub(at.elapsed()),
            },
            Some((_, why)) => why.clone(),
            None => Failure::TooManyInFlight,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn wake(&self, slots: u32) {
        let first = self
            .queue
            .first(slots)
            .and_then(|first| self.waiting.get(&first));
        if let Some(first) = first {
            first.woken.notify_one();
        }
    }
}

impl Hold {
    /// Whether it may be over within so long.
    fn ends_within(&self, patience: Duration) -> bool {
        match self.until {
            Until::After(pause) => pause <= patience,
            Until::OneEnds => !patience.is_zero(),
            Until::Never => false,
        }
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let mut inner = self.line.inner();
        inner
            .queue
            .leave(self.wish, self.number, self.served.load(Ordering::Relaxed));
        inner.waiting.remove(&self.number);
        inner.wake(self.line.slots());
    }
}

impl Slot {
    /// A request takes it: whoever waits is woken when it is given back.
    pub fn used(&mut self) {
        self.is_used = true;
    }

    /// The request is not sent after all: nobody is woken, since who backs out
    /// is the one whose turn it is.
    pub fn unused(&mut self) {
        self.is_used = false;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut inner = self.line.inner();
        inner.queue.release(self.client);
        if self.is_used {
            inner.wake(self.line.slots());
        }
    }
}

#[cfg(test)]
mod tests;
