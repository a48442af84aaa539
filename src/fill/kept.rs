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
use super::{AnswerSource, Fetch, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::metadata::ClientFreshness;
use crate::cache::purge::CheckedPurge;
use crate::chain::ledger::Observation;
use crate::chain::{ChainStamp, Class, Progress};
use crate::clock::Moment;
use crate::pages::{Block, Page};
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

    /// Gives other replicas what was fetched, with the tip at which it was. Without it, another of
    /// them fetches.
    pub(super) async fn give(&self, lock: FillLock, found: &FillResult) {
        let Ok(FillAnswer { stored, from }) = found else {
            return;
        };
        if *from != (AnswerSource::Upstream { stored: true }) {
            return lock.not_stored().await;
        }
        let tip = stored.stamp.as_ref().and_then(|stamp| {
            let (epoch, mark) = self.chain.tip(stamp.tip).read(|ledger| ledger.tip_mark())?;
            (stamp.epoch == epoch).then_some(mark)
        });
        let response = SharedResponse {
            tip: tip.unwrap_or_default(),
            value: encode(&self.value_of(stored), &[]),
        };
        lock.put(&response, stored.lifetime.min(LONGEST)).await;
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
        let (answers, names) = (&self.lower.answers, &self.lower.names);
        let stamp = stored.stamp.as_ref();
        let is_worth_it = match stamp {
            Some(stamp) => stamp.class == Class::Final && stamp.heights.is_some(),
            None => !stored.lifetime.is_zero(),
        };
        let row = names.row_key(key).filter(|_| is_worth_it);
        let Some(key) = row.filter(|_| answers.is_on()) else {
            return;
        };
        let purge = stored.checked.number();
        let tip = stamp.and_then(|stamp| names.tip(stamp.tip));
        let blocks = stored.page.iter().flat_map(|page| &page.blocks);
        // The highest proves all others. It must be known before what names it.
        if let Some((tip, block)) = tip.zip(blocks.max_by_key(|block| block.height)) {
            answers.put_blocks(tip, vec![(block.height, block.hash)], purge);
        }
        let value = self.value_of(stored);
        answers.put(Row {
            key,
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
            received: self.wall_millis(stored.received),
            lifetime: stored.lifetime,
            is_encodable: stored.is_encodable,
            class: stored.stamp.as_ref().map(|stamp| stamp.class),
            heights: stored.stamp.as_ref().and_then(|stamp| stamp.heights),
            body: stored.body.clone(),
        }
    }

    /// A moment in milliseconds since 1970.
    fn wall_millis(&self, moment: Moment) -> u64 {
        let since = self.clock.wall(moment).duration_since(UNIX_EPOCH);
        millis(since.unwrap_or_default())
    }
}

impl Fetch {
    /// The response to its key that was kept, or that another replica has. It is in memory from
    /// then on, unless it is not known to stand. Else what is fetched is given to other replicas
    /// under this lock, if there is one.
    pub(super) async fn recall(&self) -> Result<FillAnswer, Option<FillLock>> {
        let (fill, key) = (&self.fill, self.key());
        // Both before anything is read, and this one first: what is purged later is seen by them.
        let purge = fill.cache.store().purges();
        let shared = fill.lower.shared.as_ref();
        let generation = shared.and_then(|shared| shared.purges.generation());
        if let Some(found) = self.recall_kept(purge).await {
            return Ok(found);
        }
        let (Some(shared), Some(generation)) = (shared, generation) else {
            return Err(None);
        };
        let named = fill.lower.names.shared_key(key).ok_or(None)?;
        let usable = |found: &SharedResponse| self.use_shared(found, purge);
        let stored = match shared.responses.look_up(&named, generation, usable).await {
            LookUp::Found(stored) => Arc::new(stored),
            LookUp::Lead(lock) => return Err(Some(lock)),
            LookUp::Alone => return Err(None),
        };
        fill.take(&fill.own_key(key, &stored), &stored);
        let from = AnswerSource::Shared;
        Ok(FillAnswer { stored, from })
    }

    /// The response to its key that was kept.
    async fn recall_kept(&self, purge: u64) -> Option<FillAnswer> {
        let (fill, key) = (&self.fill, self.key());
        let answers = Some(&fill.lower.answers).filter(|answers| answers.is_on())?;
        let value = answers.look_up(fill.lower.names.row_key(key)?).await?;
        let class = match value.class {
            Some(_) => Some(self.kept_class(&value).await?),
            None => None,
        };
        let stored = Arc::new(self.restored(value, class, purge)?);
        let store = fill.cache.store();
        if store.response_was_purged(key, &stored) {
            return None;
        }
        let from = match class {
            Some(Class::Recent) => AnswerSource::Unconfirmed,
            _ => {
                fill.take_kept(key, &stored);
                AnswerSource::Disk
            }
        };
        Some(FillAnswer { stored, from })
    }

    /// Whether a response of mode `chain` that was kept is final; recent, which is stale,
    /// if that is not known yet; `None` if it is not used.
    async fn kept_class(&self, value: &Value) -> Option<Class> {
        let (lower, tip) = (&self.fill.lower, self.tip());
        let (_, highest) = value.heights?;
        // What this run has kept was purged where it stands no more.
        if value.run == lower.run {
            return Some(Class::Final);
        }
        let progress = tip.reach(Progress::Unanswered, lower.stale_wait).await;
        if tip.read(|ledger| ledger.stands) >= Some(highest) {
            return Some(Class::Final);
        }
        let stale_if_error = self.route().cache.stale_if_error;
        let is_usable = progress < Progress::Confirmed && self.fill.running_for() < stale_if_error;
        is_usable.then_some(Class::Recent)
    }

    /// A response of another replica, if it is final here, or of the present tip; on a route
    /// in mode `override`, if it is fresh.
    fn use_shared(&self, found: &SharedResponse, purge: u64) -> Option<StoredResponse> {
        let value = decode(&found.value, &[], LARGEST)?;
        let view = self.tip().view();
        let is_final = value
            .heights
            .is_some_and(|(_, highest)| view.is_final(highest));
        let class = match value.class {
            Some(Class::Final | Class::Recent) if is_final => Some(Class::Final),
            Some(class) if self.is_of_present_tip(&value, &found.tip) => {
                Some(class.min(Class::Recent))
            }
            Some(_) => return None,
            None => None,
        };
        self.restored(value, class, purge)
    }

    /// Whether another replica's response was fetched at the present tip, and contradicts
    /// nothing that is known.
    fn is_of_present_tip(&self, value: &Value, mark: &[u8]) -> bool {
        let tip = self.tip();
        let (start, present, is_sure) = tip.read(|ledger| {
            let is_sure = ledger.check().is_none();
            (ledger.start(), ledger.tip_mark(), is_sure)
        });
        let Some((epoch, present)) = present else {
            return false;
        };
        // What ends a check may have to purge: only this process's own requests do.
        if !is_sure || mark != present {
            return false;
        }
        let page = Page::read(&value.body);
        let observation = Observation {
            route: self.route().number,
            blocks: page.as_deref().map_or(&[], |page| &page.blocks),
            ..Observation::default()
        };
        let applied = tip.apply_answer(start, observation, self.fill.clock.now());
        applied.stored_in == Some(epoch)
    }

    /// A response that was kept, and has this class now; `None` if its age is not known, or if it
    /// is fresh no more.
    fn restored(&self, value: Value, class: Option<Class>, purge: u64) -> Option<StoredResponse> {
        let (fill, tip) = (&self.fill, self.route().cache.tip);
        let now = fill.clock.now();
        let wall = fill.wall_millis(now);
        if value.received > wall.saturating_add(millis(TOLERANCE)) {
            return None;
        }
        let age = Duration::from_millis(wall.saturating_sub(value.received));
        let longest = class.map_or(value.lifetime, Class::lifetime);
        let lifetime = value.lifetime.min(longest);
        if age >= lifetime {
            return None;
        }
        let stamp = class.map(|class| ChainStamp {
            class,
            tip,
            epoch: self.tip().view().epoch,
            heights: value.heights,
            is_settled: false,
        });
        let freshness = match &stamp {
            Some(stamp) => fill.client_freshness(stamp),
            None => ClientFreshness::For(value.lifetime),
        };
        let status = StatusCode::from_u16(value.status).ok()?;
        let content_type = HeaderValue::from_bytes(&value.content_type).ok()?;
        let is_page = status == StatusCode::OK && stamp.is_some();
        Some(StoredResponse {
            received: now.before(age),
            lifetime,
            page: is_page.then(|| Page::read(&value.body)).flatten(),
            is_encodable: value.is_encodable,
            checked: CheckedPurge::at(purge),
            stamp,
            ..prepared(status, (content_type, freshness), value.body)
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
