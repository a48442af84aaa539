//! Who is next: the requests that wait for a slot or for budget, and how much each client
//! has used lately.
//!
//! Probes of a tip go first, then the client that has used least; of two with equal use, the
//! one that has waited longer. Priority counts within a client. Use is the number of
//! requests sent, which halves every [`HALF_LIFE`]: a client with few requests goes at once,
//! however many others want more than they can get, and those share the rest evenly.
//!
//! A client that has requests in flight gets another slot only while more than a quarter of
//! them is free, so that who has none finds one. A client that may not is passed over, and
//! delays no other.
//!
//! Whatever may let a request proceed calls [`AdmissionQueue::pump`], which hands out permits in this
//! order until one is denied.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use foldhash::quality::RandomState;
use http::StatusCode;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::endpoint::Endpoint;
use super::failure::Failure;
use super::permit::Permit;
use super::request::{Priority, RequestPriority};
use super::retry::Tried;
use super::{Place, Slots, Upstream};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::meter::LatencyHistogram;
use crate::reason::Reason;
use crate::sync::lock;

/// The half-life of a client's use.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// How often clients with next to no use are forgotten.
const FORGET: Duration = Duration::from_secs(60);
/// No request waits so long.
const NEVER: Duration = Duration::from_hours(48);
/// At most this many clients are tracked. Further ones count as one client, until some are
/// forgotten.
const MAX_CLIENTS: usize = 16_384;
/// With fewer slots than this, none is kept free for clients that have none.
pub(crate) const MIN_SHARED_SLOTS: u32 = 4;

/// The queue of one upstream. It outlives reloads.
pub(crate) struct AdmissionQueue {
    state: Mutex<State>,
    clock: Clock,
}

struct State {
    /// The upstream as of the last reload.
    upstream: Weak<Upstream>,
    /// `None` is ordgate itself, and all clients beyond the tracked ones.
    clients: HashMap<Option<Client>, ClientUse, RandomState>,
    /// The requests of each client that wait, oldest first; none is empty.
    waiting: HashMap<Option<Client>, VecDeque<Waiter>, RandomState>,
    capacity: usize,
    /// The number of the next request.
    next: u64,
    /// Why the first request could last not proceed.
    denied: Option<Failure>,
    /// When a timer pumps.
    timer: Option<Instant>,
    forgotten: Moment,
    /// How long admitted requests waited, by priority.
    waited: [LatencyHistogram; Priority::ALL.len()],
}

/// What a client uses.
#[derive(Default)]
struct ClientUse {
    /// The use at a moment.
    used: (f64, Moment),
    in_flight: u32,
}

/// A request that waits.
struct Waiter {
    number: u64,
    request: RequestPriority,
    place: Place,
    came: Moment,
    deadline: Instant,
    to: oneshot::Sender<Result<Permit, Failure>>,
}

/// A slot among the requests in flight at an endpoint, which counts for a client until this
/// is dropped.
pub struct Slot {
    queue: Arc<AdmissionQueue>,
    endpoint: Arc<Endpoint>,
    client: Option<Client>,
}

/// What a client uses and waits for, for `/status`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientUsage {
    /// `None` for ordgate itself, and for all clients beyond the tracked ones.
    pub(crate) client: Option<Client>,
    /// Its requests, each weighted by age ([`HALF_LIFE`]).
    pub(crate) recent: f64,
    pub(crate) waiting: usize,
    pub(crate) in_flight: u32,
}

/// Why a request is not admitted, and when it may be: at the earliest after a time, or when
/// another one ends.
pub(super) struct Denied {
    pub(super) failure: Failure,
    pub(super) wait: Option<Duration>,
}

impl Denied {
    /// No budget is left for this time.
    pub(super) fn spent_for(wait: Duration) -> Self {
        Self {
            failure: Failure::until(Reason::OverBudget, wait),
            wait: Some(wait),
        }
    }

    /// Too many requests to this host are unanswered: no budget is left until one has ended.
    pub(super) fn spent_until_request_ends() -> Self {
        Self {
            wait: None,
            ..Self::spent_for(Duration::from_secs(1))
        }
    }

    /// A host has refused the key.
    pub(super) fn key_refused(status: StatusCode) -> Self {
        Self {
            failure: Failure::status(Reason::KeyRefused, status),
            wait: Some(NEVER),
        }
    }

    /// Of the reasons of two keys, the one that ends earlier.
    pub(super) fn better(self, other: Self) -> Self {
        // Waiting for a key that is set aside does not help.
        let end = |denied: &Self| denied.wait.unwrap_or(NEVER / 2);
        if end(&other) < end(&self) {
            other
        } else {
            self
        }
    }
}

impl ClientUse {
    fn used(&self, now: Moment) -> f64 {
        let (used, at) = self.used;
        used * (-now.since(at).as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
    }

    fn charge(&mut self, requests: f64, now: Moment) {
        self.used = ((self.used(now) + requests).max(0.0), now);
    }
}

impl Upstream {
    /// Waits for the permission to send a request, at most until `deadline`.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn acquire(
        &self,
        request: RequestPriority,
        tried: &Tried,
        deadline: Instant,
    ) -> Result<Permit, Failure> {
        if !self.is_selected(tried.place()) {
            return self.queue.admit_elsewhere(request, tried.place());
        }
        let (to, permit) = oneshot::channel();
        let position = self.queue.enter(request, tried.place(), deadline, to)?;
        self.queue.pump();
        match timeout_at(deadline, permit).await {
            Ok(Ok(permitted)) => permitted,
            // It has lost its place to another client's request.
            Ok(Err(_displaced)) => Err(no_slot()),
            Err(_elapsed) => Err(position.denied()),
        }
    }
}

fn no_slot() -> Failure {
    Failure::until(Reason::NoSlot, Duration::from_secs(1))
}

impl Upstream {
    /// Why a request for a client would have to wait now, if it would.
    pub(crate) fn held(&self, client: Option<Client>) -> Option<Failure> {
        let endpoint = &self.endpoints[self.place(Place::Selected)];
        if let Some(wait) = endpoint.wait(false, self.has_tip()) {
            return Some(Failure::until(Reason::BreakerOpen, wait));
        }
        let slots = self.slots();
        let is_full = endpoint.in_flight() >= self.settings().admission.max_in_flight.get();
        if is_full || !self.queue.state().may_take(client, slots) {
            return Some(no_slot());
        }
        let denied = self.keys.denied(&endpoint.host, false)?;
        Some(denied.failure)
    }
}

/// A place in the queue, which is left when this is dropped.
struct Position<'q> {
    queue: &'q AdmissionQueue,
    client: Option<Client>,
    number: u64,
}

impl Position<'_> {
    /// Why the request was not admitted in time.
    fn denied(&self) -> Failure {
        let state = self.queue.state();
        let upstream = state.upstream.upgrade();
        let is_passed_over =
            upstream.is_some_and(|upstream| !state.may_take(self.client, upstream.slots()));
        let denied = state.denied.clone().filter(|_| !is_passed_over);
        drop(state);
        denied.unwrap_or_else(no_slot)
    }
}

impl Drop for Position<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let left = state.remove(self.client, self.number);
        drop(state);
        // With it goes a permit that came too late.
        drop(left);
    }
}

impl AdmissionQueue {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                upstream: Weak::new(),
                clients: HashMap::default(),
                waiting: HashMap::default(),
                capacity: 0,
                next: 0,
                denied: None,
                timer: None,
                forgotten: Moment::default(),
                waited: Default::default(),
            }),
            clock,
        })
    }

    /// Requests that wait get permits of this upstream from now on.
    pub(super) fn serve(self: &Arc<Self>, upstream: &Arc<Upstream>) {
        let mut state = self.state();
        state.upstream = Arc::downgrade(upstream);
        state.capacity = upstream.settings().admission.max_queue.get() as usize;
        drop(state);
        self.pump();
    }

    fn enter(
        &self,
        request: RequestPriority,
        place: Place,
        deadline: Instant,
        to: oneshot::Sender<Result<Permit, Failure>>,
    ) -> Result<Position<'_>, Failure> {
        let now = self.clock.now();
        let mut state = self.state();
        state.forget(now);
        let client = state.tracked(request.client);
        let displaced = match state.len() < state.capacity {
            true => None,
            false => Some(state.displace(client, request.priority)?),
        };
        state.next += 1;
        let number = state.next;
        let own = state.waiting.entry(client).or_default();
        own.push_back(Waiter {
            number,
            request: RequestPriority { client, ..request },
            place,
            came: now,
            deadline,
            to,
        });
        drop(state);
        drop(displaced);
        Ok(Position {
            queue: self,
            client,
            number,
        })
    }

    /// A permit for an endpoint that other requests do not wait for. The request has been
    /// admitted before, or is a probe: it waits for none of them, nor they for it.
    fn admit_elsewhere(&self, request: RequestPriority, place: Place) -> Result<Permit, Failure> {
        let mut state = self.state();
        let upstream = state.upstream.upgrade().ok_or_else(no_slot)?;
        let client = state.tracked(request.client);
        let request = RequestPriority { client, ..request };
        let permit = upstream.permit(request, place);
        let permit = permit.map_err(|denied| denied.failure)?;
        state.charge(client, 1.0, self.clock.now());
        state.begin(&request);
        Ok(permit)
    }

    /// Hands out permits, until one is denied.
    pub(super) fn pump(self: &Arc<Self>) {
        // Those that nobody takes are given back when the lock is released.
        let mut given_up = Vec::new();
        let mut state = self.state();
        if state.waiting.is_empty() {
            return;
        }
        let Some(upstream) = state.upstream.upgrade() else {
            return;
        };
        loop {
            let now = self.clock.now();
            let Some((client, number)) = state.first(upstream.slots(), now) else {
                break;
            };
            let Some(waiter) = state.waiter(client, number) else {
                break;
            };
            let is_elsewhere = !upstream.is_selected(waiter.place);
            match upstream.permit(waiter.request, waiter.place) {
                Ok(permit) => {
                    state.charge(client, 1.0, now);
                    if let Some(taken) = state.take_slot(client, number, now) {
                        given_up.extend(taken.to.send(Ok(permit)).err());
                    }
                }
                // It alone waits for that endpoint.
                Err(denied) if is_elsewhere => {
                    if let Some(refused) = state.remove(client, number) {
                        given_up.extend(refused.to.send(Err(denied.failure)).err());
                    }
                }
                Err(denied) => {
                    state.denied = Some(denied.failure.clone());
                    let Some(wait) = denied.wait else {
                        break;
                    };
                    let at = Instant::now() + wait;
                    given_up.extend(state.refuse(&denied.failure, at));
                    if !state.waiting.is_empty() && state.timer.is_none_or(|timer| at < timer) {
                        state.timer = Some(at);
                        tokio::spawn(pump_at(Arc::downgrade(self), at));
                    }
                    break;
                }
            }
        }
        drop(state);
        drop(given_up);
    }

    /// Another request counts for a client, or, with a negative number, one that was not sent
    /// does not.
    pub(super) fn charge(&self, client: Option<Client>, requests: f64) {
        let now = self.clock.now();
        self.state().charge(client, requests, now);
    }

    /// A slot for a request, which the client's use counts already.
    pub(super) fn slot(self: &Arc<Self>, endpoint: &Arc<Endpoint>, client: Option<Client>) -> Slot {
        endpoint.begin();
        Slot {
            queue: self.clone(),
            endpoint: endpoint.clone(),
            client,
        }
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.state().len()
    }

    /// How many clients have used the upstream recently, or want to.
    pub(crate) fn active_clients(&self) -> usize {
        self.state().clients.len()
    }

    /// The `count` clients that have used most, sorted.
    pub(crate) fn busiest_clients(&self, count: usize) -> Vec<ClientUsage> {
        let (state, now) = (self.state(), self.clock.now());
        let clients = state.clients.iter().map(|(client, own)| ClientUsage {
            client: *client,
            recent: own.used(now),
            waiting: state.waiting.get(client).map_or(0, VecDeque::len),
            in_flight: own.in_flight,
        });
        let mut clients: Vec<_> = clients.collect();
        clients.sort_by(|one, other| other.recent.total_cmp(&one.recent));
        clients.truncate(count);
        clients
    }

    /// How long admitted requests of a priority waited.
    pub(crate) fn waited(&self, priority: Priority) -> LatencyHistogram {
        self.state().waited[priority as usize].clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Pumps at a time, when there may be budget.
async fn pump_at(queue: Weak<AdmissionQueue>, at: Instant) {
    sleep_until(at).await;
    if let Some(queue) = queue.upgrade() {
        queue.state().timer.take_if(|timer| *timer <= at);
        queue.pump();
    }
}

impl State {
    fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// The client that a request counts for.
    fn tracked(&self, client: Option<Client>) -> Option<Client> {
        client.filter(|_| self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client))
    }

    /// Whether a client may have one more of the slots in flight.
    fn may_take(&self, client: Option<Client>, slots: Slots) -> bool {
        let own = self.clients.get(&client).map_or(0, |own| own.in_flight);
        own == 0 || slots.kept == 0 || slots.free > slots.kept
    }

    /// The request that goes next: its client and its number.
    fn first(&self, slots: Slots, now: Moment) -> Option<(Option<Client>, u64)> {
        let mut own = self.waiting.get(&None).into_iter().flatten();
        if let Some(probe) = own.find(|one| one.request.is_probe()) {
            return Some((None, probe.number));
        }
        let clients = self.waiting.iter();
        let clients = clients.filter(|(client, _)| self.may_take(**client, slots));
        let ranked = clients.filter_map(|(client, waiting)| {
            // A miss before revalidations, the oldest first.
            let first = waiting
                .iter()
                .min_by_key(|one| (one.request.priority, one.number))?;
            let used = self.clients.get(client).map_or(0.0, |own| own.used(now));
            Some((used, first.number, *client))
        });
        let first = ranked.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        first.map(|(_, number, client)| (client, number))
    }

    fn waiter(&self, client: Option<Client>, number: u64) -> Option<&Waiter> {
        let mut waiting = self.waiting.get(&client)?.iter();
        waiting.find(|one| one.number == number)
    }

    fn remove(&mut self, client: Option<Client>, number: u64) -> Option<Waiter> {
        let own = self.waiting.get_mut(&client)?;
        let at = own.iter().position(|one| one.number == number)?;
        let removed = own.remove(at);
        if own.is_empty() {
            self.waiting.remove(&client);
        }
        removed
    }

    /// A request is admitted.
    fn take_slot(&mut self, client: Option<Client>, number: u64, now: Moment) -> Option<Waiter> {
        let taken = self.remove(client, number)?;
        let request = taken.request;
        self.waited[request.priority as usize].record(now.since(taken.came));
        self.begin(&request);
        Some(taken)
    }

    /// A request of a client is in flight.
    fn begin(&mut self, request: &RequestPriority) {
        if !request.is_probe() {
            self.clients.entry(request.client).or_default().in_flight += 1;
        }
    }

    fn charge(&mut self, client: Option<Client>, requests: f64, now: Moment) {
        if client.is_some() {
            self.clients
                .entry(client)
                .or_default()
                .charge(requests, now);
        }
    }

    /// Removes the requests that must leave before a moment at which there may be budget.
    fn refuse(&mut self, failure: &Failure, at: Instant) -> Vec<Result<Permit, Failure>> {
        let mut unread = Vec::new();
        self.waiting.retain(|_, own| {
            let (keep, refused): (VecDeque<_>, VecDeque<_>) =
                own.drain(..).partition(|one| one.deadline >= at);
            *own = keep;
            let refused = refused.into_iter();
            unread.extend(refused.filter_map(|one| one.to.send(Err(failure.clone())).err()));
            !own.is_empty()
        });
        unread
    }

    /// Makes room for a request: the client with the most waiting requests loses its last.
    ///
    /// # Errors
    /// If that is the client itself, and none of its requests is less urgent.
    fn displace(&mut self, client: Option<Client>, priority: Priority) -> Result<Waiter, Failure> {
        let own = self.waiting.get(&client).map_or(0, VecDeque::len);
        let waiting = self
            .waiting
            .iter()
            .map(|(client, own)| (own.len(), *client));
        let (most, mut loser) = waiting.max_by_key(|(most, _)| *most).ok_or_else(no_slot)?;
        let mut below = Priority::Probe;
        if priority != Priority::Probe && most <= own + 1 {
            (loser, below) = (client, priority);
        }
        let waiting = self.waiting.get(&loser).into_iter().flatten();
        let less_urgent = waiting.filter(|one| one.request.priority > below);
        // Of the least urgent ones, the last.
        let last = less_urgent.max_by_key(|one| (one.request.priority, one.number));
        let number = last.map(|one| one.number).ok_or_else(no_slot)?;
        self.remove(loser, number).ok_or_else(no_slot)
    }

    /// Forgets clients that have used next to nothing, which bounds the memory.
    fn forget(&mut self, now: Moment) {
        if now.since(self.forgotten) < FORGET {
            return;
        }
        self.forgotten = now;
        self.clients
            .retain(|_, own| own.in_flight > 0 || own.used(now) > 0.25);
        self.clients.shrink_to(1024);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.endpoint.end();
        let mut state = self.queue.state();
        if let Some(own) = state.clients.get_mut(&self.client) {
            own.in_flight = own.in_flight.saturating_sub(1);
        }
        drop(state);
        self.queue.pump();
    }
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod crowd_tests;
