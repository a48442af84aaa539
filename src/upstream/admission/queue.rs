//! The admission queue of one upstream: requests wait here for a slot or for budget.
//! The first request in the [fair order](super::fair_order) tries; the others wait
//! until they are first, each up to its own deadline.
//!
//! Invariants: every wait has a deadline; a request that leaves the queue, served or
//! not, wakes the next; whatever may let a request proceed calls
//! [`AdmissionQueue::wake`].
//!
//! Deliberately absent: the order, and what a request tries (`upstream`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::fair_order::{ClientUsage, FairOrder, MIN_SHARED_SLOTS, QueueFull, Ticket};
use super::{Denied, Priority, RequestPriority};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::sync::lock;
use crate::upstream::latency::Latency;

/// The admission queue of one upstream.
pub struct AdmissionQueue {
    state: Mutex<QueueState>,
    /// How long admitted requests waited, by priority.
    wait_times: Mutex<[Latency; Priority::ALL.len()]>,
    /// The slots of the endpoint in use.
    slots: AtomicU32,
    /// The requests per second of all keys together.
    budget_per_second: AtomicU32,
    clock: Clock,
}

/// A slot that is accounted to a client. Dropping it releases the slot, and wakes
/// the first waiting request if the slot was [used](ClientSlot::mark_used).
pub(crate) struct ClientSlot {
    queue: Arc<AdmissionQueue>,
    client: Option<Client>,
    is_used: bool,
}

struct QueueState {
    order: FairOrder,
    waiters: HashMap<Ticket, Arc<Waiter>>,
    /// Why the first request could last not proceed, and when.
    last_denied: Option<(Instant, Denied)>,
}

#[derive(Default)]
struct Waiter {
    woken: Notify,
    /// It was removed to make room for another.
    is_displaced: AtomicBool,
}

/// A request cannot be admitted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAdmitted {
    pub(crate) denied: Denied,
    /// Whether it may wait until the cause has ended.
    pub(crate) may_wait: bool,
}

/// A position in the queue. Dropping it leaves the queue.
struct QueuePosition<'q> {
    queue: &'q AdmissionQueue,
    request: RequestPriority,
    ticket: Ticket,
    waiter: Arc<Waiter>,
    was_served: AtomicBool,
}

impl AdmissionQueue {
    /// An empty queue for up to `capacity` requests.
    pub(crate) fn new(capacity: usize, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(QueueState {
                order: FairOrder::new(capacity),
                waiters: HashMap::new(),
                last_denied: None,
            }),
            wait_times: Mutex::default(),
            slots: AtomicU32::new(u32::MAX),
            budget_per_second: AtomicU32::new(u32::MAX),
            clock,
        })
    }

    /// Changes how many requests may wait.
    pub(crate) fn set_capacity(&self, capacity: usize) {
        self.state().order.set_capacity(capacity);
    }

    /// Admits a request: calls `attempt` whenever the request is first, until it
    /// succeeds or `max_wait` is over. `attempt`
    /// receives a slot accounted to the client; a probe needs none.
    ///
    /// # Errors
    /// Why the request was not admitted.
    pub(crate) async fn admit<T>(
        self: &Arc<Self>,
        request: RequestPriority,
        max_wait: Duration,
        mut attempt: impl FnMut(Option<ClientSlot>) -> Result<T, NotAdmitted>,
    ) -> Result<T, Denied> {
        let came = self.clock.now();
        let deadline = Instant::now() + max_wait;
        let (request, slot) = {
            let mut state = self.state();
            let request = RequestPriority {
                client: state.order.tracked(request.client),
                ..request
            };
            let goes_first = state.order.goes_first(request, self.shared_slots());
            let slot = goes_first.then(|| self.take_slot(&mut state, request));
            (request, slot)
        };
        if let Some(slot) = slot {
            match attempt(slot) {
                Ok(admitted) => {
                    self.record_wait(request.priority, came);
                    return Ok(admitted);
                }
                Err(error) if !error.may_end_within(max_wait) => {
                    return Err(error.denied);
                }
                Err(_) => {}
            }
        }
        let position = self.enter(request)?;
        let admitted = self.wait_for_admission(&position, deadline, attempt).await;
        if admitted.is_ok() {
            position.was_served.store(true, Ordering::Relaxed);
            self.record_wait(request.priority, came);
        }
        admitted
    }

    /// Calls `attempt` whenever the position is the first, until the deadline.
    async fn wait_for_admission<T>(
        self: &Arc<Self>,
        position: &QueuePosition<'_>,
        deadline: Instant,
        mut attempt: impl FnMut(Option<ClientSlot>) -> Result<T, NotAdmitted>,
    ) -> Result<T, Denied> {
        let request = position.request;
        loop {
            let woken = position.waiter.woken.notified();
            tokio::pin!(woken);
            // From here on no wake-up is missed.
            woken.as_mut().enable();
            if position.waiter.is_displaced.load(Ordering::Acquire) {
                return Err(self.denied_for(request));
            }
            let mut until = deadline;
            let slot = {
                let mut state = self.state();
                let first = state.order.first(self.shared_slots());
                let is_first = first == Some(position.ticket);
                is_first.then(|| self.take_slot(&mut state, request))
            };
            if let Some(slot) = slot {
                match attempt(slot) {
                    Ok(admitted) => return Ok(admitted),
                    Err(error) => {
                        let now = Instant::now();
                        self.state().last_denied = Some((now, error.denied));
                        if now >= deadline || !error.may_end_within(deadline - now) {
                            return Err(error.denied);
                        }
                        if let Denied::SpentFor(pause) = error.denied {
                            until = now + pause;
                        }
                    }
                }
            } else if Instant::now() >= deadline {
                return Err(self.denied_for(request));
            }
            let _woken = timeout_at(until, woken).await;
        }
    }

    /// A slot for a request that was admitted before, even beyond its client's share.
    pub(crate) fn client_slot(self: &Arc<Self>, request: RequestPriority) -> Option<ClientSlot> {
        let mut state = self.state();
        let client = state.order.tracked(request.client);
        self.take_slot(&mut state, RequestPriority { client, ..request })
    }

    fn take_slot(
        self: &Arc<Self>,
        state: &mut QueueState,
        request: RequestPriority,
    ) -> Option<ClientSlot> {
        if request.priority == Priority::Probe {
            return None;
        }
        state.order.take_slot(request.client);
        Some(ClientSlot {
            queue: self.clone(),
            client: request.client,
            is_used: false,
        })
    }

    /// Sets the number of slots that clients share.
    pub(crate) fn set_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    /// Sets the budget's requests per second. An unanswered request counts against
    /// every second, so the slow requests of one client could use up the budget.
    /// Clients therefore share no more slots than this.
    pub(crate) fn set_budget_per_second(&self, requests: u32) {
        let requests = requests.max(MIN_SHARED_SLOTS);
        self.budget_per_second.store(requests, Ordering::Relaxed);
    }

    fn shared_slots(&self) -> u32 {
        let per_second = self.budget_per_second.load(Ordering::Relaxed);
        self.slots.load(Ordering::Relaxed).min(per_second)
    }

    /// Charges requests against the budget to a client; with a negative number, gives them
    /// back.
    pub(crate) fn charge(&self, client: Option<Client>, requests: f64) {
        let now = self.clock.now();
        let mut state = self.state();
        state.order.charge(client, requests, now);
        // Another client may be first now.
        state.wake(self.shared_slots());
    }

    /// Whether a client may have one more request in flight.
    pub(crate) fn may_take_slot(&self, client: Option<Client>) -> bool {
        self.state()
            .order
            .may_take_slot(client, self.shared_slots())
    }

    /// How many clients have used the budget recently, or compete for it.
    pub(crate) fn active_clients(&self) -> usize {
        self.state().order.active_clients()
    }

    /// The `count` clients that have used the budget most recently, by usage.
    pub(crate) fn busiest_clients(&self, count: usize) -> Vec<ClientUsage> {
        let now = self.clock.now();
        self.state().order.busiest_clients(count, now)
    }

    /// Wakes the first request, which may be able to proceed.
    pub(crate) fn wake(&self) {
        self.state().wake(self.shared_slots());
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.state().order.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The 0.5, 0.9 and 0.99 quantiles of how long recently admitted requests of a
    /// priority waited.
    pub(crate) fn recent_wait_quantiles(&self, priority: Priority) -> [(f64, Option<Duration>); 3] {
        let now = self.clock.now();
        let wait_times = self.wait_times();
        let quantile = |share| wait_times[priority.index()].quantile(share, now);
        [0.5, 0.9, 0.99].map(|share| (share, quantile(share)))
    }

    /// How long admitted requests waited, by priority.
    pub(crate) fn wait_times(&self) -> MutexGuard<'_, [Latency; Priority::ALL.len()]> {
        lock(&self.wait_times)
    }

    fn record_wait(&self, priority: Priority, came: Moment) {
        let now = self.clock.now();
        self.wait_times()[priority.index()].record(now.since(came), now);
    }

    fn enter(&self, request: RequestPriority) -> Result<QueuePosition<'_>, Denied> {
        let mut state = self.state();
        let (ticket, displaced) = match state.order.push(request) {
            Ok(pushed) => pushed,
            Err(QueueFull) => {
                drop(state);
                return Err(self.denied_for(request));
            }
        };
        let waiter = Arc::<Waiter>::default();
        state.waiters.insert(ticket, waiter.clone());
        if let Some(displaced) = displaced.and_then(|ticket| state.waiters.remove(&ticket)) {
            displaced.is_displaced.store(true, Ordering::Release);
            displaced.woken.notify_one();
        }
        Ok(QueuePosition {
            queue: self,
            request,
            ticket,
            waiter,
            was_served: AtomicBool::new(false),
        })
    }

    /// Why a request that was not served leaves the queue.
    fn denied_for(&self, request: RequestPriority) -> Denied {
        let state = self.state();
        if !state
            .order
            .may_take_slot(request.client, self.shared_slots())
        {
            return Denied::NoSlot;
        }
        let Some((at, denied)) = state.last_denied else {
            return Denied::NoSlot;
        };
        match denied.budget_after() {
            Some(after) => Denied::SpentFor(after.saturating_sub(at.elapsed())),
            None => denied,
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }
}

impl QueueState {
    fn wake(&self, slots: u32) {
        let first = self.order.first(slots);
        if let Some(waiter) = first.and_then(|first| self.waiters.get(&first)) {
            waiter.woken.notify_one();
        }
    }
}

impl From<Denied> for NotAdmitted {
    fn from(denied: Denied) -> Self {
        Self {
            denied,
            may_wait: true,
        }
    }
}

impl NotAdmitted {
    /// Whether the cause may end within this time.
    fn may_end_within(&self, max_wait: Duration) -> bool {
        self.may_wait && self.denied.may_end_within(max_wait)
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let was_served = self.was_served.load(Ordering::Relaxed);
        let mut state = self.queue.state();
        state.order.remove(self.request, self.ticket, was_served);
        state.waiters.remove(&self.ticket);
        state.wake(self.queue.shared_slots());
    }
}

impl ClientSlot {
    /// A request uses it: its release wakes the first waiting request.
    pub(crate) fn mark_used(&mut self) {
        self.is_used = true;
    }

    /// The request is not sent after all: its release wakes none, because the request
    /// that gives it back is itself the first.
    pub(crate) fn mark_unused(&mut self) {
        self.is_used = false;
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.order.release_slot(self.client);
        if self.is_used {
            state.wake(self.queue.shared_slots());
        }
    }
}

#[cfg(test)]
mod tests;
