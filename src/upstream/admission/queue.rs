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

use super::fair_order::{ClientUsage, FairOrder, LEAST_SHARED, QueueFull, Ticket};
use super::{Priority, RequestPriority};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::upstream::Failure;
use crate::upstream::endpoint::latency::Latency;

/// The line before one upstream.
pub struct AdmissionQueue {
    inner: Mutex<Inner>,
    /// How long those have waited who passed, by priority.
    wait_times: Mutex<[Latency; Priority::ALL.len()]>,
    /// How many slots the endpoint has that was asked last.
    slots: AtomicU32,
    /// How many requests the budget of all keys has for a second.
    budget_per_second: AtomicU32,
    clock: Clock,
}

/// A slot that counts as a client's. It is given back when this is dropped; and
/// if it was [used](Slot::used), whoever waits is woken.
pub struct ClientSlot {
    queue: Arc<AdmissionQueue>,
    client: Option<Client>,
    is_used: bool,
}

struct Inner {
    queue: FairOrder,
    waiting: HashMap<Ticket, Arc<Waiter>>,
    /// Why whoever's turn it was could not pass, and when that was.
    last_failure: Option<(Instant, Failure)>,
}

#[derive(Default)]
struct Waiter {
    woken: Notify,
    /// It has had to go for another.
    is_displaced: AtomicBool,
}

/// Why one cannot pass just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAdmitted {
    /// What it is told if it waits no longer.
    pub failure: Failure,
    /// Until when.
    pub retry: AdmissionRetry,
}

/// Until when one cannot pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionRetry {
    /// For so long at the least.
    After(Duration),
    /// Until a request that is under way ends.
    WhenRequestEnds,
    /// Waiting is of no use.
    Never,
}

/// A place in the line; it is left when this is dropped.
struct QueuePosition<'l> {
    queue: &'l AdmissionQueue,
    priority: RequestPriority,
    number: Ticket,
    waiting: Arc<Waiter>,
    served: AtomicBool,
}

impl AdmissionQueue {
    /// Nobody waits, and so many may.
    pub fn new(most: usize, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                queue: FairOrder::new(most),
                waiting: HashMap::new(),
                last_failure: None,
            }),
            wait_times: Mutex::default(),
            slots: AtomicU32::new(u32::MAX),
            budget_per_second: AtomicU32::new(u32::MAX),
            clock,
        })
    }

    /// So many may wait from now on.
    pub fn set_capacity(&self, most: usize) {
        self.inner().queue.set_capacity(most);
    }

    /// Passes as soon as it is this one's turn and `attempt` lets it, within so
    /// long. One of the least priority does not wait, since it can do without.
    /// `attempt` is given a slot that counts as the client's, unless it is a
    /// probe, which needs none.
    ///
    /// # Errors
    /// Why it could not pass.
    pub async fn admit<T>(
        self: &Arc<Self>,
        wish: RequestPriority,
        patience: Duration,
        mut attempt: impl FnMut(Option<ClientSlot>) -> Result<T, NotAdmitted>,
    ) -> Result<T, Failure> {
        let came = self.clock.now();
        let deadline = Instant::now() + patience;
        let waits = wish.priority != Priority::LookAhead;
        let (wish, slot) = {
            let mut inner = self.inner();
            let caller = inner.queue.tracked(wish.client);
            let wish = RequestPriority {
                client: caller,
                ..wish
            };
            let goes = inner.queue.goes_first(wish, self.shared_slots());
            (wish, goes.then(|| self.slot_if_needed(&mut inner, wish)))
        };
        if let Some(slot) = slot {
            match attempt(slot) {
                Ok(passed) => {
                    self.record_wait(wish.priority, came);
                    return Ok(passed);
                }
                Err(hold) if !waits || !hold.may_end_within(patience) => return Err(hold.failure),
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
            if place.waiting.is_displaced.load(Ordering::Acquire) {
                return Err(self.failure_for(wish));
            }
            let mut until = deadline;
            let slot = {
                let mut inner = self.inner();
                let is_first = inner.queue.first(self.shared_slots()) == Some(place.number);
                is_first.then(|| self.slot_if_needed(&mut inner, wish))
            };
            if let Some(slot) = slot {
                match attempt(slot) {
                    Ok(passed) => {
                        place.served.store(true, Ordering::Relaxed);
                        self.record_wait(wish.priority, came);
                        return Ok(passed);
                    }
                    Err(hold) => {
                        let now = Instant::now();
                        self.inner().last_failure = Some((now, hold.failure.clone()));
                        if now >= deadline || !hold.may_end_within(deadline - now) {
                            return Err(hold.failure);
                        }
                        if let AdmissionRetry::After(pause) = hold.retry {
                            until = now + pause;
                        }
                    }
                }
            } else if Instant::now() >= deadline {
                return Err(self.failure_for(wish));
            }
            let _woken = timeout_at(until, woken).await;
        }
    }

    /// A slot that counts as a client's, whatever its share; for a request that
    /// has had its turn already.
    pub fn client_slot(self: &Arc<Self>, wish: RequestPriority) -> Option<ClientSlot> {
        let mut inner = self.inner();
        let caller = inner.queue.tracked(wish.client);
        self.slot_if_needed(
            &mut inner,
            RequestPriority {
                client: caller,
                ..wish
            },
        )
    }

    /// A slot that counts as nobody's, for a probe that needs one.
    pub fn probe_slot(self: &Arc<Self>) -> ClientSlot {
        self.inner().queue.take_slot(None);
        ClientSlot {
            queue: self.clone(),
            client: None,
            is_used: false,
        }
    }

    /// A slot for what can do without: `None` where somebody waits, or it is more
    /// than its client's share.
    pub fn spare_slot(self: &Arc<Self>, client: Option<Client>) -> Option<ClientSlot> {
        let mut inner = self.inner();
        let wish = RequestPriority {
            priority: Priority::LookAhead,
            client: inner.queue.tracked(client),
        };
        let goes = inner.queue.goes_first(wish, self.shared_slots());
        goes.then(|| self.slot_if_needed(&mut inner, wish))
            .flatten()
    }

    fn slot_if_needed(
        self: &Arc<Self>,
        inner: &mut Inner,
        wish: RequestPriority,
    ) -> Option<ClientSlot> {
        if wish.priority == Priority::Probe {
            return None;
        }
        inner.queue.take_slot(wish.client);
        Some(ClientSlot {
            queue: self.clone(),
            client: wish.client,
            is_used: false,
        })
    }

    /// There are so many slots from now on, of which clients have shares.
    pub fn set_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    /// The budget has so many requests for a second from now on. A request that
    /// is not answered takes one of each second, so that one client's slow ones
    /// could take all: clients have shares of no more slots than that.
    pub fn set_budget_per_second(&self, requests: u32) {
        let requests = requests.max(LEAST_SHARED);
        self.budget_per_second.store(requests, Ordering::Relaxed);
    }

    fn shared_slots(&self) -> u32 {
        let a_second = self.budget_per_second.load(Ordering::Relaxed);
        self.slots.load(Ordering::Relaxed).min(a_second)
    }

    /// Counts a request that is paid from the budget for a client.
    pub fn charge(&self, client: Option<Client>) {
        let now = self.clock.now();
        let mut inner = self.inner();
        inner.queue.charge(client, now);
        // It may be another client's turn now.
        inner.wake(self.shared_slots());
    }

    /// Whether a client has had little of the budget of late, so that the
    /// reserve is for it.
    pub fn is_light(&self, client: Client) -> bool {
        self.inner().queue.is_light(Some(client))
    }

    /// Whether a client may have one more request in flight.
    pub fn may_take_slot(&self, client: Option<Client>) -> bool {
        self.inner()
            .queue
            .may_take_slot(client, self.shared_slots())
    }

    /// Whether a request waits for its client's share of the slots alone.
    pub fn is_first_over_its_share(&self) -> bool {
        self.inner()
            .queue
            .is_first_over_its_share(self.shared_slots())
    }

    /// How many clients have had some of the budget of late, or want some.
    pub fn active_clients(&self) -> usize {
        self.inner().queue.active_clients()
    }

    /// The clients that have had the most of the budget of late, so many of
    /// them.
    pub fn busiest_clients(&self, most: usize) -> Vec<ClientUsage> {
        let now = self.clock.now();
        self.inner().queue.busiest_clients(most, now)
    }

    /// Something has changed: whoever's turn it is may look again.
    pub fn wake(&self) {
        self.inner().wake(self.shared_slots());
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
    pub fn recent_wait_quantiles(&self, priority: Priority) -> [(f64, Option<Duration>); 3] {
        let now = self.clock.now();
        let waited = self.wait_times();
        [0.5, 0.9, 0.99].map(|share| (share, waited[priority.index()].quantile(share, now)))
    }

    /// How long those have waited who passed, for each priority.
    pub fn wait_times(&self) -> MutexGuard<'_, [Latency; Priority::ALL.len()]> {
        self.wait_times
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn record_wait(&self, priority: Priority, came: Moment) {
        let now = self.clock.now();
        self.wait_times()[priority.index()].record(now.since(came), now);
    }

    fn enter(&self, wish: RequestPriority) -> Result<QueuePosition<'_>, Failure> {
        let mut inner = self.inner();
        let (number, out) = match inner.queue.push(wish) {
            Ok(entered) => entered,
            Err(QueueFull) => {
                drop(inner);
                return Err(self.failure_for(wish));
            }
        };
        let waiting = Arc::<Waiter>::default();
        inner.waiting.insert(number, waiting.clone());
        if let Some(out) = out.and_then(|out| inner.waiting.remove(&out)) {
            out.is_displaced.store(true, Ordering::Release);
            out.woken.notify_one();
        }
        Ok(QueuePosition {
            queue: self,
            priority: wish,
            number,
            waiting,
            served: AtomicBool::new(false),
        })
    }

    /// Why a request leaves the queue that was not served.
    fn failure_for(&self, wish: RequestPriority) -> Failure {
        let inner = self.inner();
        if !inner.queue.may_take_slot(wish.client, self.shared_slots()) {
            return Failure::TooManyInFlight;
        }
        match &inner.last_failure {
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

impl NotAdmitted {
    /// Whether it may be over within so long.
    fn may_end_within(&self, patience: Duration) -> bool {
        match self.retry {
            AdmissionRetry::After(pause) => pause <= patience,
            AdmissionRetry::WhenRequestEnds => !patience.is_zero(),
            AdmissionRetry::Never => false,
        }
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let mut inner = self.queue.inner();
        inner.queue.remove(
            self.priority,
            self.number,
            self.served.load(Ordering::Relaxed),
        );
        inner.waiting.remove(&self.number);
        inner.wake(self.queue.shared_slots());
    }
}

impl ClientSlot {
    /// A request takes it: whoever waits is woken when it is given back.
    pub fn mark_used(&mut self) {
        self.is_used = true;
    }

    /// The request is not sent after all: nobody is woken, since who backs out
    /// is the one whose turn it is.
    pub fn mark_unused(&mut self) {
        self.is_used = false;
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut inner = self.queue.inner();
        inner.queue.release_slot(self.client);
        if self.is_used {
            inner.wake(self.queue.shared_slots());
        }
    }
}

#[cfg(test)]
mod tests;
