//! What outlives the process, or is known to other replicas, between memory and the
//! upstream.
//!
//! Final responses of mode `chain` are kept, and those of mode `override`. A response that
//! an earlier run has kept is final here only once one request has confirmed the highest
//! block of that run ([`Chain::stood`](crate::chain::Chain::stood)); until then it is stale.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::StatusCode;

use super::lookup::own_key;
use super::names::StoredNames;
use super::{AnswerSource, FIRST_PROBE, Fill, FillAnswer, FillResult};
use crate::cache::encoded::BodyId;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::policy::Mode;
use crate::cache::purge::CheckedPurge;
use crate::cache::{StoredFields, StoredResponse};
use crate::chain::ledger::Observation;
use crate::chain::{ChainStamp, Class, SeedState};
use crate::clock::Moment;
use crate::pages::{Block, Page};
use crate::route::Route;
use crate::shared::Shared;
use crate::shared::responses::{LookUp, SharedResponse};
use crate::state::value::{KeptSubject, Value, decode, encode};
use crate::state::{Answers, Row};

/// Where responses are looked up that memory does not have.
pub(crate) struct LowerTiers {
    /// Those that outlive the process.
    pub(crate) answers: Answers,
    /// What replicas share, if there are several.
    pub(crate) shared: Option<Arc<Shared>>,
    /// What routes and tips are called there.
    pub(crate) names: StoredNames,
    /// Tells this run from others.
    pub(crate) run: u64,
    /// When it began.
    pub(crate) began: Moment,
    /// How long a response waits until the highest block of the earlier run is confirmed.
    pub(crate) stale_wait: Duration,
    /// Whether replicas share an engine.
    pub(crate) has_engine: bool,
    /// How long a response waits while another replica fetches it.
    pub(crate) fill_wait: Duration,
}

impl LowerTiers {
    /// The same after a reload.
    pub(crate) fn after(
        &self,
        names: StoredNames,
        stale_wait: Duration,
        fill_wait: Duration,
    ) -> Self {
        Self {
            answers: self.answers.clone(),
            shared: self.shared.clone(),
            names,
            stale_wait,
            fill_wait,
            ..*self
        }
    }

    /// The longest that a look-up may take.
    pub(super) fn longest_wait(&self) -> Duration {
        LOOK_UP + self.stale_wait + self.fill_wait
    }
}

/// How long a look-up takes at most, and some more.
const LOOK_UP: Duration = Duration::from_millis(200);
/// How long replicas keep a response for each other at most.
const LONGEST: Duration = Duration::from_hours(24);
/// The most bytes of a body that another replica gives.
const LARGEST: usize = 8 << 20;
/// A value of the future is of a clock that was set back since: its age is not known.
const TOLERANCE: Duration = Duration::from_secs(60);

impl Fill {
    /// Takes over the blocks that an earlier run knew, before the first request.
    pub(crate) async fn seed(&self) {
        for number in 0..self.chain.len() {
            let Ok(number) = u16::try_from(number) else {
                return;
            };
            if let Some(name) = self.lower.names.tip(number) {
                let known = self.lower.answers.blocks(name).await.into_iter();
                let known = known.map(|(height, hash)| Block { height, hash });
                self.chain.seed(number, &known.collect::<Vec<_>>());
            }
        }
    }

    /// The response to a key that was kept or that another replica has, or what `fetch`
    /// gives. It is in memory from then on, unless it is not known to stand.
    pub(super) async fn recall_or(
        &self,
        key: &Key,
        route: &Route,
        fetch: impl Future<Output = FillResult> + Send,
    ) -> FillResult {
        // Both before anything is read, and this one first: what is purged later is seen by them.
        let sequence = self.cache.store().purges();
        let generation = self.lower.shared.as_ref();
        let generation = generation.and_then(|shared| shared.purges.generation());
        if let Some(found) = self.recall(key, route, sequence).await {
            return Ok(found);
        }
        let shared = self.lower.shared.as_ref().zip(generation);
        let named = self.lower.names.shared_key(key);
        let Some(((shared, generation), named)) = shared.zip(named) else {
            return fetch.await;
        };
        if route.cache.mode == Mode::Chain {
            // Without a tip, nothing of what others have can be used.
            self.chain.first_probe(route.cache.tip, FIRST_PROBE).await;
        }
        let is_usable = |found: &SharedResponse| self.use_shared(route, found, sequence).is_some();
        match shared
            .responses
            .look_up(&named, generation, is_usable)
            .await
        {
            LookUp::Found(found) => match self.use_shared(route, &found, sequence) {
                Some(stored) => {
                    let own = own_key(key, route, &stored);
                    let stored = Arc::new(stored);
                    self.take(&own, route, &stored);
                    self.keep(&own, route, &stored);
                    let from = AnswerSource::Shared;
                    Ok(FillAnswer { stored, from })
                }
                None => fetch.await,
            },
            LookUp::Alone => fetch.await,
            LookUp::Lead(lead) => {
                let found = fetch.await;
                match &found {
                    Ok(found) if found.from == (AnswerSource::Upstream { stored: true }) => {
                        let response = self.shared_response(&found.stored);
                        lead.put(&response, found.stored.lifetime.min(LONGEST))
                            .await;
                    }
                    Ok(_) => lead.not_stored().await,
                    // Dropped, it lets another replica try.
                    Err(_) => {}
                }
                found
            }
        }
    }

    /// The response to a key that was kept.
    async fn recall(&self, key: &Key, route: &Route, sequence: u64) -> Option<FillAnswer> {
        if !self.lower.answers.is_on() {
            return None;
        }
        let row = self.lower.names.row_key(key)?;
        let value = self.lower.answers.look_up(row).await?;
        let mut from = AnswerSource::Disk;
        let stamp = match route.cache.mode {
            Mode::Chain => {
                let class = self.kept_class(route, &value).await?;
                if class != Class::Final {
                    from = AnswerSource::Unconfirmed;
                }
                Some(self.kept_stamp(route, &value, class))
            }
            Mode::Override | Mode::Respect | Mode::Off => None,
        };
        let stored = Arc::new(self.restored(value, stamp, sequence)?);
        if self.cache.store().response_was_purged(key, &stored) {
            return None;
        }
        if from == AnswerSource::Disk {
            self.take(key, route, &stored);
        }
        Some(FillAnswer { stored, from })
    }

    /// Takes a response into memory.
    fn take(&self, key: &Key, route: &Route, stored: &Arc<StoredResponse>) {
        self.note_transactions(key, route, stored);
        self.cache.store().insert(key.clone(), stored.clone());
    }

    /// A response of another replica, if it is final here, or of the present tip; on a route
    /// in mode `override`, if it is fresh.
    fn use_shared(
        &self,
        route: &Route,
        found: &SharedResponse,
        sequence: u64,
    ) -> Option<StoredResponse> {
        let value = decode(&found.value, LARGEST)?;
        let stamp = match route.cache.mode {
            Mode::Chain => {
                let tip = route.cache.tip;
                let is_final = |(_, highest)| self.chain.is_final(tip, highest);
                let is_blocks = value.subject? == KeptSubject::Blocks;
                let class = if is_blocks && value.heights.is_some_and(is_final) {
                    Class::Final
                } else {
                    self.is_of_present_tip(route, &value, &found.tip)?;
                    match value.subject? {
                        KeptSubject::Blocks => Class::Recent,
                        KeptSubject::Live => Class::Live,
                        KeptSubject::Absent => Class::Absent,
                    }
                };
                Some(self.kept_stamp(route, &value, class))
            }
            Mode::Override | Mode::Respect | Mode::Off => None,
        };
        self.restored(value, stamp, sequence)
    }

    /// Whether another replica's response was fetched at the present tip, and contradicts
    /// nothing that is known.
    fn is_of_present_tip(&self, route: &Route, value: &Value, mark: &[u8]) -> Option<()> {
        let tip = route.cache.tip;
        let start = self.chain.request_start(tip);
        let (epoch, present) = self.chain.tip_mark(tip)?;
        if mark != present {
            return None;
        }
        let page = Page::read(&value.body);
        let observation = Observation {
            route: route.number,
            blocks: page.as_deref().map_or(&[], |page| &page.blocks),
            ..Observation::default()
        };
        let now = self.clock.now();
        let applied = self.chain.apply_answer(tip, start, observation, now);
        (applied.stored_in == Some(epoch)).then_some(())
    }

    /// The stamp of a response that was kept, or that another replica has.
    fn kept_stamp(&self, route: &Route, value: &Value, class: Class) -> ChainStamp {
        let tip = route.cache.tip;
        ChainStamp {
            class,
            tip,
            epoch: self.chain.epoch(tip),
            heights: value.heights,
            is_settled: false,
        }
    }

    /// A response as other replicas have it.
    fn shared_response(&self, stored: &StoredResponse) -> SharedResponse {
        let mark = stored.stamp().and_then(|stamp| {
            let (epoch, mark) = self.chain.tip_mark(stamp.tip)?;
            (stamp.epoch == epoch).then_some(mark)
        });
        SharedResponse {
            tip: mark.unwrap_or_default(),
            value: encode(&self.value_of(stored)),
        }
    }

    /// Whether a response of mode `chain` that was kept is final; recent, which is stale,
    /// if that is not known yet; `None` if it is not used.
    async fn kept_class(&self, route: &Route, value: &Value) -> Option<Class> {
        let (lower, tip) = (&self.lower, route.cache.tip);
        let (_, highest) = value.heights?;
        // What this run has kept was purged where it stands no more.
        if value.run == lower.run {
            return Some(Class::Final);
        }
        let state = self.chain.seed_state(tip, lower.stale_wait).await;
        if self.chain.stood(tip, highest) {
            return Some(Class::Final);
        }
        let is_usable = state != SeedState::Done && self.running_for() < route.cache.stale_if_error;
        is_usable.then_some(Class::Recent)
    }

    /// Whether a response to a key is kept, for `/explain`.
    pub(crate) async fn is_kept(&self, key: &Key) -> bool {
        match self.lower.names.row_key(key) {
            Some(row) => self.lower.answers.look_up(row).await.is_some(),
            None => false,
        }
    }

    /// How long ago the process began, for how long what is not confirmed is stale.
    pub(crate) fn running_for(&self) -> Duration {
        self.clock.now().since(self.lower.began)
    }

    /// Keeps a response that was just stored in memory, if it is worth it. Never waits.
    pub(super) fn keep(&self, key: &Key, route: &Route, stored: &StoredResponse) {
        let answers = &self.lower.answers;
        let stamp = stored.stamp();
        let is_worth_it = match stamp {
            Some(stamp) => stamp.class == Class::Final && stamp.heights.is_some(),
            None => route.cache.mode == Mode::Override && !stored.lifetime.is_zero(),
        };
        let Some(row) = self.lower.names.row_key(key) else {
            return;
        };
        if !answers.is_on() || !is_worth_it {
            return;
        }
        let purge = stored.checked.number();
        let tip = stamp.and_then(|stamp| self.lower.names.tip(stamp.tip));
        let blocks = stored.page().map_or(&[][..], |page| &page.blocks).iter();
        // The highest proves all others. It must be known before what names it.
        if let Some((tip, block)) = tip.zip(blocks.max_by_key(|block| block.height)) {
            answers.put_blocks(tip, vec![(block.height, block.hash)], purge);
        }
        let value = self.value_of(stored);
        answers.put(Row {
            key: row,
            tip: tip.cloned(),
            expires: value.received + millis(stored.lifetime),
            purge,
            value,
        });
    }

    /// A response as it is kept.
    fn value_of(&self, stored: &StoredResponse) -> Value {
        let subject = stored.stamp().map(|stamp| match stamp.class {
            Class::Final | Class::Recent => KeptSubject::Blocks,
            Class::Live => KeptSubject::Live,
            Class::Absent => KeptSubject::Absent,
        });
        Value {
            run: self.lower.run,
            status: stored.status,
            content_type: stored.content_type(),
            etag: stored.etag.clone(),
            received: self.wall_millis(stored.received),
            lifetime: stored.lifetime,
            took: stored.took,
            is_encodable: stored.body_id.is_encodable(),
            subject,
            heights: stored.stamp().and_then(|stamp| stamp.heights),
            body: stored.body.clone(),
        }
    }

    /// A response that was kept; `None` if its age is not known, or if it is fresh no more.
    fn restored(
        &self,
        value: Value,
        stamp: Option<ChainStamp>,
        sequence: u64,
    ) -> Option<StoredResponse> {
        let now = self.clock.now();
        let wall = self.wall_millis(now);
        if value.received > wall.saturating_add(millis(TOLERANCE)) {
            return None;
        }
        let age = Duration::from_millis(wall.saturating_sub(value.received));
        let lifetime = match &stamp {
            Some(stamp) => value
                .lifetime
                .min(self.chain.finality().lifetime(stamp.class)),
            None => value.lifetime,
        };
        if age >= lifetime {
            return None;
        }
        let freshness = match &stamp {
            Some(stamp) => {
                let lifetime = self.chain.client_lifetime(stamp.class, stamp.tip, now);
                ClientFreshness::of_class(stamp.class, lifetime)
            }
            None => ClientFreshness::For(value.lifetime),
        };
        let page = match value.status == StatusCode::OK && stamp.is_some() {
            true => Page::read(&value.body),
            false => None,
        };
        Some(StoredResponse {
            status: value.status,
            fields: StoredFields::Prepared(Metadata::of(value.content_type, freshness)),
            received: now.before(age),
            lifetime,
            took: value.took,
            body: value.body,
            body_id: BodyId::of(&value.etag, value.is_encodable),
            etag: value.etag,
            checked: CheckedPurge::at(sequence),
            stamp,
            page,
        })
    }

    /// A moment in milliseconds since 1970.
    fn wall_millis(&self, moment: Moment) -> u64 {
        let since = self.clock.wall(moment).duration_since(UNIX_EPOCH);
        millis(since.unwrap_or_default())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
