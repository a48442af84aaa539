//! What outlives the process, or is known to other replicas, between memory and the
//! upstream.
//!
//! Final responses of mode `chain` are kept, and those of mode `override`. A response that
//! an earlier run has kept is final here only once one request has confirmed the highest
//! block of that run (`Ledger::stands`); until then it is stale.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderValue, StatusCode};

use super::ingest::prepared;
use super::names::StoredNames;
use super::{AnswerSource, Fill, FillAnswer, FillResult};
use crate::cache::key::Key;
use crate::cache::metadata::ClientFreshness;
use crate::cache::policy::Mode;
use crate::cache::purge::CheckedPurge;
use crate::cache::{Encodings, StoredResponse};
use crate::chain::ledger::Observation;
use crate::chain::{ChainStamp, Class, Progress};
use crate::clock::Moment;
use crate::pages::{Block, Page};
use crate::route::Route;
use crate::shared::Shared;
use crate::shared::responses::{FillLock, LookUp, SharedResponse};
use crate::state::value::{Value, decode, encode};
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
}

impl LowerTiers {
    /// Whether replicas share an engine.
    pub(crate) fn has_engine(&self) -> bool {
        self.shared
            .as_ref()
            .is_some_and(|shared| shared.has_engine())
    }

    /// The longest that a look-up may take.
    pub(super) fn longest_wait(&self) -> Duration {
        let shared = self.shared.as_ref();
        let fill_wait = shared.map_or(Duration::ZERO, |shared| shared.fill_wait());
        LOOK_UP + self.stale_wait + fill_wait
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
        for number in 0.. {
            let Some(name) = self.lower.names.tip(number) else {
                return;
            };
            let known = self.lower.answers.blocks(name).await.into_iter();
            let known = known.map(|(height, hash)| Block { height, hash });
            let tip = self.chain.tip(number);
            tip.change(|ledger| known.for_each(|block| ledger.learn(block)));
        }
    }

    /// The response to a key that was kept, or that another replica has. It is in memory from
    /// then on, unless it is not known to stand. Else what is fetched is given to other replicas
    /// under this lock, if there is one.
    pub(super) async fn recall(
        &self,
        key: &Key,
        route: &Route,
    ) -> Result<FillAnswer, Option<FillLock>> {
        // Both before anything is read, and this one first: what is purged later is seen by them.
        let sequence = self.cache.store().purges();
        let shared = self.lower.shared.as_ref();
        let generation = shared.and_then(|shared| shared.purges.generation());
        if let Some(found) = self.recall_kept(key, route, sequence).await {
            return Ok(found);
        }
        let named = self.lower.names.shared_key(key);
        let (Some(shared), Some(generation), Some(named)) = (shared, generation, named) else {
            return Err(None);
        };
        let usable = |found: &SharedResponse| self.use_shared(route, found, sequence);
        let stored = match shared.responses.look_up(&named, generation, usable).await {
            LookUp::Found(stored) => Arc::new(stored),
            LookUp::Lead(lock) => return Err(Some(lock)),
            LookUp::Alone => return Err(None),
        };
        let own = self.own_key(key, &stored);
        self.take(&own, &stored);
        let from = AnswerSource::Shared;
        Ok(FillAnswer { stored, from })
    }

    /// Gives other replicas what was fetched. Without it, another of them fetches.
    pub(super) async fn give(&self, lock: FillLock, found: &FillResult) {
        let Ok(found) = found else {
            return;
        };
        match found.from == (AnswerSource::Upstream { stored: true }) {
            true => {
                let response = self.shared_response(&found.stored);
                let lasts = found.stored.lifetime.min(LONGEST);
                lock.put(&response, lasts).await;
            }
            false => lock.not_stored().await,
        }
    }

    /// The response to a key that was kept.
    async fn recall_kept(&self, key: &Key, route: &Route, sequence: u64) -> Option<FillAnswer> {
        let row = self.lower.names.row_key(key)?;
        let answers = self.lower.answers.is_on().then_some(&self.lower.answers)?;
        let value = answers.look_up(row).await?;
        let class = match value.class {
            Some(_) => Some(self.kept_class(route, &value).await?),
            None => None,
        };
        let stored = Arc::new(self.restored(route, value, class, sequence)?);
        if self
            .cache
            .store()
            .response_was_purged(key.as_bytes(), &stored)
        {
            return None;
        }
        let from = match class {
            Some(Class::Recent) => AnswerSource::Unconfirmed,
            _ => {
                self.take_kept(key, &stored);
                AnswerSource::Disk
            }
        };
        Some(FillAnswer { stored, from })
    }

    /// A response of another replica, if it is final here, or of the present tip; on a route
    /// in mode `override`, if it is fresh.
    fn use_shared(
        &self,
        route: &Route,
        found: &SharedResponse,
        sequence: u64,
    ) -> Option<StoredResponse> {
        let value = decode(&found.value, &[], LARGEST)?;
        let is_final = |(_, highest)| self.chain.tip(route.cache.tip).view().is_final(highest);
        let class = match value.class {
            Some(Class::Final | Class::Recent) if value.heights.is_some_and(is_final) => {
                Some(Class::Final)
            }
            Some(class) => {
                self.is_of_present_tip(route, &value, &found.tip)?;
                Some(class.min(Class::Recent))
            }
            None => None,
        };
        self.restored(route, value, class, sequence)
    }

    /// Whether another replica's response was fetched at the present tip, and contradicts
    /// nothing that is known.
    fn is_of_present_tip(&self, route: &Route, value: &Value, mark: &[u8]) -> Option<()> {
        let tip = self.chain.tip(route.cache.tip);
        let start = tip.read(|ledger| ledger.start());
        // What ends a check may have to purge: only this process's own requests do.
        if tip.read(|ledger| ledger.check()).is_some() {
            return None;
        }
        let (epoch, present) = tip.read(|ledger| ledger.tip_mark())?;
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
        let applied = tip.apply_answer(start, observation, now);
        (applied.stored_in == Some(epoch)).then_some(())
    }

    /// A response as other replicas have it.
    fn shared_response(&self, stored: &StoredResponse) -> SharedResponse {
        let mark = stored.stamp.as_ref().and_then(|stamp| {
            let (epoch, mark) = self.chain.tip(stamp.tip).read(|ledger| ledger.tip_mark())?;
            (stamp.epoch == epoch).then_some(mark)
        });
        SharedResponse {
            tip: mark.unwrap_or_default(),
            value: encode(&self.value_of(stored), &[]),
        }
    }

    /// Whether a response of mode `chain` that was kept is final; recent, which is stale,
    /// if that is not known yet; `None` if it is not used.
    async fn kept_class(&self, route: &Route, value: &Value) -> Option<Class> {
        let (lower, tip) = (&self.lower, self.chain.tip(route.cache.tip));
        let (_, highest) = value.heights?;
        // What this run has kept was purged where it stands no more.
        if value.run == lower.run {
            return Some(Class::Final);
        }
        let progress = tip.reach(Progress::Unanswered, lower.stale_wait).await;
        if tip.read(|ledger| ledger.stands) >= Some(highest) {
            return Some(Class::Final);
        }
        let is_usable =
            progress < Progress::Confirmed && self.running_for() < route.cache.stale_if_error;
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
    pub(super) fn keep(&self, key: &Key, stored: &StoredResponse) {
        let answers = &self.lower.answers;
        let stamp = stored.stamp.as_ref();
        let is_worth_it = match stamp {
            Some(stamp) => stamp.class == Class::Final && stamp.heights.is_some(),
            None => {
                let mode = self.route(key).map(|route| route.cache.mode);
                mode == Some(Mode::Override) && !stored.lifetime.is_zero()
            }
        };
        let row = self.lower.names.row_key(key);
        let Some(row) = row.filter(|_| answers.is_on() && is_worth_it) else {
            return;
        };
        let purge = stored.checked.number();
        let tip = stamp.and_then(|stamp| self.lower.names.tip(stamp.tip));
        let blocks = stored
            .page
            .as_deref()
            .map_or(&[][..], |page| &page.blocks)
            .iter();
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
        Value {
            run: self.lower.run,
            status: stored.status.as_u16(),
            content_type: stored.content_type().as_bytes().to_vec(),
            etag: stored.etag.as_bytes().to_vec(),
            received: self.wall_millis(stored.received),
            lifetime: stored.lifetime,
            took: stored.took,
            is_encodable: stored.is_encodable,
            class: stored.stamp.as_ref().map(|stamp| stamp.class),
            heights: stored.stamp.as_ref().and_then(|stamp| stamp.heights),
            body: stored.body.clone(),
        }
    }

    /// A response that was kept, and has this class now; `None` if its age is not known, or if it
    /// is fresh no more.
    fn restored(
        &self,
        route: &Route,
        value: Value,
        class: Option<Class>,
        sequence: u64,
    ) -> Option<StoredResponse> {
        let (now, tip) = (self.clock.now(), route.cache.tip);
        let wall = self.wall_millis(now);
        if value.received > wall.saturating_add(millis(TOLERANCE)) {
            return None;
        }
        let age = Duration::from_millis(wall.saturating_sub(value.received));
        let longest = class.map(Class::lifetime);
        let lifetime = longest.map_or(value.lifetime, |longest| longest.min(value.lifetime));
        if age >= lifetime {
            return None;
        }
        let stamp = class.map(|class| ChainStamp {
            class,
            tip,
            epoch: self.chain.tip(tip).view().epoch,
            heights: value.heights,
            is_settled: false,
        });
        let status = StatusCode::from_u16(value.status).ok()?;
        let content_type = HeaderValue::from_bytes(&value.content_type).ok()?;
        let etag = HeaderValue::from_bytes(&value.etag).ok()?;
        let freshness = match &stamp {
            Some(stamp) => self.client_freshness(stamp),
            None => ClientFreshness::For(value.lifetime),
        };
        let is_page = status == StatusCode::OK && stamp.is_some();
        Some(StoredResponse {
            status,
            fields: prepared(content_type, freshness),
            received: now.before(age),
            lifetime,
            took: value.took,
            page: is_page.then(|| Page::read(&value.body)).flatten(),
            body: value.body,
            is_encodable: value.is_encodable,
            encodings: Encodings::default(),
            etag,
            checked: CheckedPurge::at(sequence),
            stamp,
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
