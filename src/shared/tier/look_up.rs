//! Looking a response up, and waiting while another replica fetches it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::counts::count;
use super::puts::PutJob;
use super::ticket::FillTicket;
use super::usable::{EngineTime, PeekedEntry};
use super::{SharedTier, value};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::sequence::PurgeSequence;
use crate::portable::meanings::RouteMeaning;
use crate::shared::engine::SharedError;
use crate::shared::engine::entries::{FillToken, FoundEntry, LookUp};

/// The least and the most time between two look-ups of one that waits: with the most
/// waiting, a process makes some 600 calls a second.
const LEAST_PAUSE: Duration = Duration::from_millis(5);
const MOST_PAUSE: Duration = Duration::from_millis(100);
/// A pause is this part of the time since the first look-up, so that a wait is not much
/// longer than the fetch.
const PAUSE_PART: u32 = 8;
/// How often a look-up goes on after a value that cannot be used.
const MOST_UNUSABLE: usize = 3;

/// What came of a look-up.
pub(crate) enum SharedAnswer {
    /// A response that may be used here.
    Have {
        /// The key under which it is to be stored in memory.
        own: Key,
        /// The response.
        stored: Box<StoredResponse>,
        /// The purges that it was checked against.
        sequence: PurgeSequence,
    },
    /// It is to be fetched, with a ticket by which the response can be stored for others.
    Fetch(Option<FillTicket>),
}

impl SharedTier {
    /// Looks up the response for a key; where another replica fetches it, waits for that.
    /// `own_key` says under which key a response is stored in memory.
    pub(crate) async fn look_up(
        self: &Arc<Self>,
        key: &Key,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> SharedAnswer {
        let Some(route) = self.route(key) else {
            return SharedAnswer::Fetch(None);
        };
        let (link, counts) = (&self.link, self.link.counts());
        let name = self.name(route, key);
        let Some(engine) = link.engine(&name).filter(|_| link.is_used()) else {
            count(&counts.skipped);
            return SharedAnswer::Fetch(None);
        };
        let (began, fill_wait) = (Instant::now(), link.fill_wait());
        let token = FillToken(fastrand::u128(..));
        let (mut place, mut unusable, mut tries) = (None, None, 0);
        loop {
            // Before the engine is asked: what is fetched after that was not purged before.
            let Some(position) = link.journal().position() else {
                count(&counts.skipped);
                return SharedAnswer::Fetch(None);
            };
            let look_up = LookUp {
                unusable,
                token,
                lock_ms: link.lock_ms(),
            };
            let sent = link.now();
            let reply = engine.look_up(&name, &look_up).await;
            let arrived = link.now();
            let reply = match reply {
                Ok(reply) => reply,
                Err(error) => {
                    count(&counts.errors);
                    if error == SharedError::Late && look_up.lock_ms > 0 {
                        // The engine may still give the lock.
                        link.submit(PutJob::GiveUp { name, token });
                    }
                    return SharedAnswer::Fetch(None);
                }
            };
            let time = EngineTime {
                now_ms: reply.now_ms,
                sent,
                arrived,
            };
            let ticket = |is_leader| {
                let tier = self.clone();
                FillTicket::new(tier, route, (token, is_leader), (position, time), name.clone())
            };
            match reply.found {
                FoundEntry::Have { id, value } => {
                    match self.restore(route, key, &value, time, own_key) {
                        Ok(restored) => {
                            count(&counts.hits);
                            return SharedAnswer::Have {
                                own: restored.own,
                                stored: restored.stored,
                                sequence: restored.sequence,
                            };
                        }
                        Err(why) => count(&counts.unusable[why.index()]),
                    }
                    unusable = Some(id);
                    tries += 1;
                    if tries > MOST_UNUSABLE {
                        return SharedAnswer::Fetch(Some(ticket(false)));
                    }
                }
                FoundEntry::Lead => {
                    count(&counts.led);
                    return SharedAnswer::Fetch(Some(ticket(true)));
                }
                FoundEntry::None => return SharedAnswer::Fetch(Some(ticket(false))),
                FoundEntry::Follow => {
                    let is_first = place.is_none();
                    place = place.or_else(|| link.follow());
                    let left = fill_wait.saturating_sub(began.elapsed());
                    if place.is_none() || left.is_zero() {
                        count(&counts.unlocked);
                        return SharedAnswer::Fetch(Some(ticket(false)));
                    }
                    if is_first {
                        count(&counts.followed);
                    }
                    let pause = began.elapsed() / PAUSE_PART;
                    sleep(pause.clamp(LEAST_PAUSE, MOST_PAUSE).min(left)).await;
                }
            }
        }
    }

    /// What the engine has for a key, usable or not. Nothing is counted or locked.
    ///
    /// # Errors
    /// If the engine does not answer, or is not asked now.
    pub(crate) async fn peek(
        &self,
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
        Ok(Some(self.peeked(route, key, &value, time, own_key)))
    }

    fn peeked(
        &self,
        route: RouteMeaning,
        key: &Key,
        found: &[u8],
        time: EngineTime,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> PeekedEntry {
        let received = value::read(found).map(|(_, kept)| kept.received);
        let restored = self.restore(route, key, found, time, own_key);
        let reason = |why: super::usable::Unusable| super::usable::Unusable::REASONS[why.index()];
        PeekedEntry {
            age: received.and_then(|received| time.age(received)),
            unusable: restored.err().map(reason),
        }
    }
}
