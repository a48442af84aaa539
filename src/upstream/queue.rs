//! Who is next: the requests that wait for a slot or for budget, and how much each client
//! has used lately.
//!
//! Probes of a tip go first, then the client that has used least; of its requests, and of those
//! of two with equal use, the more urgent, then the one that has waited longer. Use is the number of
//! requests sent, which halves every [`HALF_LIFE`]: a client with few requests goes at once,
//! however many others want more than they can get, and those share the rest evenly.
//!
//! A client that has requests in flight gets another slot only while more than a quarter of
//! them is free, so that who has none finds one. A client that may not is passed over, and
//! delays no other. Of the places in the queue, too, a client leaves a quarter to others; a full
//! queue refuses whoever comes, but for probes.
//!
//! Whatever may let a request proceed calls [`AdmissionQueue::pump`], which hands out permits in this
//! order until one is denied.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use foldhash::quality::RandomState;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::endpoint::Endpoint;
use super::failure::Failure;
use super::permit::Permit;
use super::{Slots, Upstream};
use crate::clock::Moment;
use crate::identify::Client;
use crate::meter::LatencyHistogram;
use crate::reason::Reason;
use crate::sync::lock;
use crate::wire::request_id::RequestId;

/// The half-life of a client's use.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Beyond so many clients, the use of all is forgotten.
const MAX_CLIENTS: usize = 16_384;
/// The most requests that wait at once. A client leaves a quarter to others.
const MAX_QUEUE: usize = 1024;
/// With fewer slots than this, none is kept free for clients that have none.
pub(crate) const MIN_SHARED_SLOTS: u32 = 4;

/// How urgent a request is. Probes come first; among the requests of one client, more
/// urgent ones get slots and budget first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A probe of a chain tip. It needs no slot, and a part of the budget is kept for probes.
    Probe,
    /// A cache miss: a client waits for the answer.
    Miss,
    /// Revalidation of a stored response that can be served meanwhile.
    Revalidation,
}

impl Priority {
    /// All priorities, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Probe, Self::Miss, Self::Revalidation];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Miss => "miss",
            Self::Revalidation => "revalidation",
        }
    }
}

/// The priority of an upstream request, the client it is accounted to, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestPriority {
    /// How urgent the request is.
    pub priority: Priority,
    /// The client; `None` for a request of ordgate's own.
    pub client: Option<Client>,
    /// The number of the route of what is fetched.
    pub(crate) route: Option<u16>,
    /// What it is sent for, in logs and metrics.
    pub(crate) purpose: &'static str,
    /// The client's request that has caused it.
    pub(crate) request_id: Option<RequestId>,
}

impl RequestPriority {
    /// A request of ordgate's own.
    pub const fn own(priority: Priority) -> Self {
        Self {
            priority,
            client: None,
            route: None,
            purpose: priority.name(),
            request_id: None,
        }
    }

    pub(crate) fn is_probe(&self) -> bool {
        self.priority == Priority::Probe
    }
}

/// The queue of one upstream. It outlives reloads.
#[derive(Default)]
pub(crate) struct AdmissionQueue {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The upstream as of the last reload.
    upstream: Weak<Upstream>,
    /// `None` is ordgate itself.
    clients: HashMap<Option<Client>, ClientUse, RandomState>,
    /// In the order in which they came, those included that nobody waits for any more.
    waiting: Vec<Waiter>,
    /// When a timer pumps.
    timer: Option<Instant>,
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
    request: RequestPriority,
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

impl ClientUse {
    fn used(&self, now: Moment) -> f64 {
        let (used, at) = self.used;
        used * (-now.since(at).as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
    }
}

/// Too many requests are in flight, until one of them ends.
pub(super) fn no_slot() -> Failure {
    Failure::until(Reason::NoSlot, Duration::from_secs(1))
}

impl Upstream {
    /// Waits for the permission to send a request, at most until `deadline`. One that goes to
    /// another endpoint than the selected one has been admitted before, or is a probe: it waits
    /// for no others, nor they for it.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn acquire(
        &self,
        request: RequestPriority,
        elsewhere: Option<usize>,
        deadline: Instant,
    ) -> Result<Permit, Failure> {
        let now = self.clock.now();
        if let Some(at) = elsewhere {
            let mut state = self.queue.state();
            let upstream = state.upstream.upgrade().ok_or_else(no_slot)?;
            let permit = upstream.permit(request, Some(at))?;
            state.begin(&request, now);
            return Ok(permit);
        }
        let (to, permit) = oneshot::channel();
        let waiter = Waiter {
            request,
            came: now,
            deadline,
            to,
        };
        if !self.queue.state().enter(waiter) {
            return Err(no_slot());
        }
        self.queue.pump();
        match timeout_at(deadline, permit).await {
            Ok(Ok(permitted)) => permitted,
            Ok(Err(_)) | Err(_) => Err(self.held(request.client).unwrap_or_else(no_slot)),
        }
    }

    /// Why a request for a client would have to wait now, if it would.
    pub(crate) fn held(&self, client: Option<Client>) -> Option<Failure> {
        let endpoint = &self.endpoints[self.select_endpoint()];
        let closed = self.closed(endpoint, false).or_else(|| {
            let may_take = self.queue.state().may_take(client, self.slots());
            (!may_take).then(no_slot)
        });
        closed.or_else(|| self.keys.denied(&endpoint.host))
    }
}

impl AdmissionQueue {
    /// Requests that wait get permits of this upstream from now on.
    pub(super) fn serve(self: &Arc<Self>, upstream: &Arc<Upstream>) {
        self.state().upstream = Arc::downgrade(upstream);
        self.pump();
    }

    /// Hands out permits, until one is denied.
    pub(super) fn pump(self: &Arc<Self>) {
        // Those that nobody takes are given back when the lock is released.
        let mut given_up = Vec::new();
        let mut state = self.state();
        let Some(upstream) = state
            .upstream
            .upgrade()
            .filter(|_| !state.waiting.is_empty())
        else {
            return;
        };
        let now = upstream.clock.now();
        while let Some(at) = state.first(upstream.slots(), now) {
            match upstream.permit(state.waiting[at].request, None) {
                Ok(permit) => {
                    let admitted = state.waiting.remove(at);
                    let request = admitted.request;
                    state.waited[request.priority as usize].record(now.since(admitted.came));
                    state.begin(&request, now);
                    given_up.extend(admitted.to.send(Ok(permit)).err());
                }
                Err(denied) => {
                    let wait = denied
                        .retry_after
                        .filter(|_| denied.reason != Reason::NoSlot);
                    if let Some(wait) = wait {
                        let at = Instant::now() + wait;
                        state.refuse(&denied, at);
                        if !state.waiting.is_empty() && state.timer.is_none_or(|timer| at < timer) {
                            state.timer = Some(at);
                            tokio::spawn(pump_at(Arc::downgrade(self), at));
                        }
                    }
                    break;
                }
            }
        }
        drop(state);
        drop(given_up);
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
        self.state().waiting().count()
    }

    /// The `count` clients that have used most, sorted, as `/status` shows them: `recent` are
    /// their requests, each weighted by age ([`HALF_LIFE`]). `label` names clients.
    pub(crate) fn busiest_clients(
        &self,
        count: usize,
        now: Moment,
        label: impl Fn(Client) -> String,
    ) -> Vec<Value> {
        let state = self.state();
        let clients = state.clients.iter();
        let mut clients: Vec<_> = clients
            .map(|(client, own)| (own.used(now), client, own))
            .collect();
        clients.sort_by(|one, other| other.0.total_cmp(&one.0));
        let busiest = clients.into_iter().take(count);
        let shown = busiest.map(|(recent, client, own)| {
            json!({
                // Ordgate itself has no name.
                "client": client.map(&label),
                "recent": (recent * 10.0).round() / 10.0,
                "waiting": state.waiting_of(*client).count(),
                "in_flight": own.in_flight,
            })
        });
        shown.collect()
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
    /// Lets a request wait; `false` if the queue is full. One client leaves a quarter of it to
    /// others.
    fn enter(&mut self, waiter: Waiter) -> bool {
        self.waiting.retain(|one| !one.to.is_closed());
        let own = self.waiting_of(waiter.request.client).count();
        let is_full = self.waiting.len() >= MAX_QUEUE || own >= MAX_QUEUE - MAX_QUEUE / 4;
        let enters = !is_full || waiter.request.is_probe();
        self.waiting.extend(enters.then_some(waiter));
        enters
    }

    /// Whether a client may have one more of the slots in flight.
    fn may_take(&self, client: Option<Client>, slots: Slots) -> bool {
        let own = self.clients.get(&client).map_or(0, |own| own.in_flight);
        own == 0 || slots.kept == 0 || slots.free > slots.kept
    }

    /// The place in the queue of the request that goes next.
    fn first(&self, slots: Slots, now: Moment) -> Option<usize> {
        let may_go =
            |request: &RequestPriority| request.is_probe() || self.may_take(request.client, slots);
        let waiting = self.waiting.iter().enumerate();
        let ranked = waiting
            .filter(|(_, one)| !one.to.is_closed() && may_go(&one.request))
            .map(|(at, one)| {
                let client = self.clients.get(&one.request.client);
                let used = client.map_or(0.0, |own| own.used(now));
                // Numbers that are not negative are in the order of their bits.
                let rank = (!one.request.is_probe(), used.to_bits());
                (rank, one.request.priority, at)
            });
        ranked.min().map(|(.., at)| at)
    }

    fn waiting(&self) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter().filter(|one| !one.to.is_closed())
    }

    fn waiting_of(&self, client: Option<Client>) -> impl Iterator<Item = &Waiter> {
        self.waiting()
            .filter(move |one| one.request.client == client)
    }

    /// A request is admitted.
    fn begin(&mut self, request: &RequestPriority, now: Moment) {
        if self.clients.len() >= MAX_CLIENTS {
            self.clients.retain(|_, own| own.in_flight > 0);
        }
        let own = self.clients.entry(request.client).or_default();
        if request.client.is_some() {
            own.used = (own.used(now) + 1.0, now);
        }
        own.in_flight += u32::from(!request.is_probe());
    }

    /// Removes the requests that must leave before a moment at which there may be budget.
    fn refuse(&mut self, failure: &Failure, at: Instant) {
        for refused in self.waiting.extract_if(.., |one| one.deadline < at) {
            // Its client may have gone.
            let _ = refused.to.send(Err(failure.clone()));
        }
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
