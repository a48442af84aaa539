//! Looking a response up, and waiting while another replica fetches it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::SharedTier;
use super::client_waits::{ClientWait, Waiting};
use super::counts::count;
use super::puts::PutJob;
use super::ticket::FillTicket;
use super::usable::{EngineTime, PeekedEntry, SharedResponse, UnusableReason};
use super::value::received_of;
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::portable::meanings::RouteMeaning;
use crate::shared::engine::SharedError;
use crate::shared::engine::entries::{EntryName, FillToken, FoundEntry, GivenUp, LookUp};
use crate::trace::steps::{StepTimer, UpstreamStep};
use crate::upstream::{Check, Priority, RequestPriority};

/// The least and the most time between two look-ups of one that waits: with the most
/// waiting, a process makes some 600 calls a second.
const LEAST_PAUSE: Duration = Duration::from_millis(5);
const MOST_PAUSE: Duration = Duration::from_millis(100);
/// A pause is this part of the time since the first look-up, so that a wait is not much
/// longer than the fetch.
const PAUSE_PART: u32 = 8;
/// How often it is looked up whether another replica has fetched what waits in the queue.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How often a look-up goes on after a value that cannot be used.
const MOST_UNUSABLE: usize = 3;

/// What came of a look-up.
pub(crate) enum SharedAnswer {
    /// A response that may be used here.
    Have(SharedResponse),
    /// It is to be fetched, with a ticket by which the response can be stored for others.
    Fetch(Option<FillTicket>),
}

/// Whose look-up it is, and what it is for.
#[derive(Clone, Copy)]
struct LookUpOrigin {
    client: Waiting,
    /// Whether the fetch is locked if there is nothing.
    locks: bool,
    /// Whether it is to show that a block is in the chain of the present tip.
    is_check: bool,
}

impl From<RequestPriority> for LookUpOrigin {
    fn from(request: RequestPriority) -> Self {
        Self {
            client: request.client,
            // A request that is ahead of clients may be refused: nobody is to wait for it.
            locks: request.priority != Priority::LookAhead,
            is_check: request.origin.check == Some(Check::Fork),
        }
    }
}

/// A look-up under way.
struct Looking<'l> {
    tier: &'l Arc<SharedTier>,
    client: Waiting,
    is_check: bool,
    route: RouteMeaning,
    key: &'l Key,
    name: EntryName,
    token: FillToken,
    /// For how long others wait for this fetch; 0 if they do not.
    lock_ms: u64,
    began: Instant,
    /// The last response that was of no use.
    unusable: Option<FillToken>,
    tries: usize,
    /// Whether it waits while another replica fetches the response.
    waits: bool,
    /// Counts it among those that wait, once it has to.
    wait: Option<ClientWait>,
}

/// What is done after a reply.
enum NextStep {
    Use(SharedResponse),
    Fetch {
        is_leader: bool,
    },
    AskAgain,
    Wait(Duration),
    /// Another replica fetches it, and the look-up is not to wait.
    Leave,
}

impl SharedTier {
    /// Looks up the response for a key, which would be requested like this; where another
    /// replica fetches it, waits for that. For a check of the chain, it must show a block
    /// of the present tip's chain ([`Chain::shows_block`](crate::chain::Chain::shows_block)).
    /// `own_key` says under which key a response is stored in memory.
    pub(crate) async fn look_up(
        self: &Arc<Self>,
        key: &Key,
        request: RequestPriority,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> SharedAnswer {
        let looking = self.looking(key, request.into(), true);
        let found = match looking {
            Some(looking) => {
                let _step = StepTimer::begin(UpstreamStep::Shared, self.link.clock());
                looking.run(own_key).await
            }
            None => None,
        };
        found.unwrap_or(SharedAnswer::Fetch(None))
    }

    /// Waits until another replica has a response for a key that may be used, which is
    /// requested here and still queued. Looks only for some requests of each client, so
    /// that calls to the engine are bounded; the others wait for the place of one of them.
    pub(crate) async fn await_queued(
        self: &Arc<Self>,
        key: &Key,
        request: RequestPriority,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> SharedResponse {
        let origin = LookUpOrigin {
            locks: false,
            ..request.into()
        };
        let mut place = None;
        loop {
            sleep(LOOK_AGAIN).await;
            place = place.or_else(|| self.link.watch_queued(origin.client));
            if place.is_some()
                && let Some(found) = self.look_up_at_once(key, origin, own_key).await
            {
                return found;
            }
        }
    }

    /// Another replica's response for a key, if there is one now that may be used. A fetch
    /// of another replica is not waited for.
    async fn look_up_at_once(
        self: &Arc<Self>,
        key: &Key,
        origin: LookUpOrigin,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> Option<SharedResponse> {
        let looking = self.looking(key, origin, false)?;
        match looking.run(own_key).await? {
            SharedAnswer::Have(found) => Some(found),
            SharedAnswer::Fetch(_) => None,
        }
    }

    fn looking<'l>(
        self: &'l Arc<Self>,
        key: &'l Key,
        origin: LookUpOrigin,
        waits: bool,
    ) -> Option<Looking<'l>> {
        let route = self.route(key)?;
        Some(Looking {
            tier: self,
            client: origin.client,
            is_check: origin.is_check,
            route,
            key,
            name: self.name(route, key),
            token: FillToken(fastrand::u128(..)),
            lock_ms: if origin.locks { self.link.lock_ms() } else { 0 },
            began: Instant::now(),
            unusable: None,
            tries: 0,
            waits,
            wait: None,
        })
    }

    /// What the engine has for a key, usable or not. Nothing is counted or locked.
    ///
    /// # Errors
    /// If the engine does not answer, or is not asked now.
    pub(crate) async fn peek(
        self: &Arc<Self>,
        key: &Key,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> Result<Option<PeekedEntry>, SharedError> {
        let Some(route) = self.route(key) else {
            return Ok(None);
        };
        let name = self.name(route, key);
        let engine = self.link.engine(&name).ok_or(SharedError::Absent)?;
        let look_up = LookUp {
            unusable: None,
            token: FillToken(0),
            lock_ms: 0,
        };
        let sent = self.link.now();
        let reply = engine.look_up(&name, &look_up).await?;
        let time = EngineTime {
            now_ms: reply.now_ms,
            sent,
            arrived: self.link.now(),
        };
        let FoundEntry::Have { value, .. } = reply.found else {
            return Ok(None);
        };
        let received = received_of(&value);
        let restored = self.restore((None, route), key, value, time, own_key).await;
        let reason = |why: UnusableReason| UnusableReason::REASONS[why.index()];
        Ok(Some(PeekedEntry {
            age: received.and_then(|received| time.age(received)),
            unusable: restored.err().map(reason),
        }))
    }
}

impl Looking<'_> {
    /// `None` if it leaves, since another replica fetches it.
    async fn run(
        mut self,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> Option<SharedAnswer> {
        let link = &self.tier.link;
        let engine = link.engine(&self.name).filter(|_| link.is_used());
        loop {
            // Before the engine is asked: what is fetched after that was not purged before.
            let (Some(engine), Some(position)) = (engine, link.journal().position()) else {
                count(&link.counts().skipped);
                return Some(SharedAnswer::Fetch(None));
            };
            let look_up = LookUp {
                unusable: self.unusable,
                token: self.token,
                lock_ms: self.lock_ms,
            };
            let sent = link.now();
            let reply = engine.look_up(&self.name, &look_up).await;
            let arrived = link.now();
            let reply = match reply {
                Ok(reply) => reply,
                Err(error) => return Some(self.failed(&error)),
            };
            let time = EngineTime {
                now_ms: reply.now_ms,
                sent,
                arrived,
            };
            match self.next(reply.found, time, own_key).await {
                NextStep::AskAgain => {}
                NextStep::Wait(pause) => sleep(pause).await,
                NextStep::Leave => return None,
                NextStep::Use(restored) => {
                    count(&link.counts().hits);
                    return Some(SharedAnswer::Have(restored));
                }
                NextStep::Fetch { is_leader } => {
                    let ticket = FillTicket::new(
                        self.tier.clone(),
                        self.route,
                        (self.token, is_leader),
                        (position, time),
                        self.name,
                    );
                    return Some(SharedAnswer::Fetch(Some(ticket)));
                }
            }
        }
    }

    /// The engine did not answer.
    fn failed(self, error: &SharedError) -> SharedAnswer {
        let link = &self.tier.link;
        count(&link.counts().errors);
        let is_unsent = matches!(error, SharedError::Absent | SharedError::Refused(_));
        if !is_unsent && self.lock_ms > 0 {
            // It may still give the lock.
            let given_up = GivenUp {
                token: self.token,
                unlocked_ms: 0,
            };
            link.submit(PutJob::GiveUp(self.name, given_up));
        }
        SharedAnswer::Fetch(None)
    }

    async fn next(
        &mut self,
        found: FoundEntry,
        time: EngineTime,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> NextStep {
        let counts = self.tier.link.counts();
        match found {
            FoundEntry::Have { id, value } => {
                let (of, key) = ((self.client, self.route), self.key);
                match self.tier.restore(of, key, value, time, own_key).await {
                    Ok(found) if self.is_check && !self.shows_block(&found) => {
                        count(&counts.unusable[UnusableReason::Chain.index()]);
                    }
                    Ok(restored) => return NextStep::Use(restored),
                    Err(why) => {
                        count(&counts.unusable[why.index()]);
                        if why == UnusableReason::Busy {
                            // It is good, so it must not be replaced.
                            return NextStep::Fetch { is_leader: false };
                        }
                    }
                }
                self.unusable = Some(id);
                self.tries += 1;
                match self.tries > MOST_UNUSABLE {
                    true => NextStep::Fetch { is_leader: false },
                    false => NextStep::AskAgain,
                }
            }
            FoundEntry::Lead => {
                count(&counts.led);
                NextStep::Fetch { is_leader: true }
            }
            FoundEntry::None => NextStep::Fetch { is_leader: false },
            FoundEntry::Follow if !self.waits => NextStep::Leave,
            FoundEntry::Follow => self.follow(),
        }
    }

    /// Whether a response shows a block of the present tip's chain.
    fn shows_block(&self, found: &SharedResponse) -> bool {
        let stamp = found.stored.stamp();
        stamp.is_some_and(|stamp| self.tier.chain.shows_block(stamp))
    }

    /// Another replica fetches it.
    fn follow(&mut self) -> NextStep {
        let link = &self.tier.link;
        let is_first = self.wait.is_none();
        if is_first {
            self.wait = link.follow(self.client);
        }
        let waited = self.began.elapsed();
        let left = link.fill_wait().saturating_sub(waited);
        if self.wait.is_none() || left.is_zero() {
            count(&link.counts().unlocked);
            return NextStep::Fetch { is_leader: false };
        }
        if is_first {
            count(&link.counts().followed);
        }
        let pause = (waited / PAUSE_PART).clamp(LEAST_PAUSE, MOST_PAUSE);
        NextStep::Wait(pause.min(left))
    }
}
