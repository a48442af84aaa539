//! One fetch at a time for each key, on routes of all modes: from memory, the state
//! directory, another replica, or the upstream, in this order. Whoever wants the key
//! meanwhile waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::exchange::Fetched;
use super::{
    Announced, Answer, AnswerSource, ClientRequest, FIRST_PROBE, Fetch, Fill, FillAnswer,
    FillResult, MOST_ATTEMPTS,
};
use crate::cache::key::Key;
use crate::cache::outcome::Forward;
use crate::cache::policy::Mode;
use crate::cache::reuse::Reuse;
use crate::cache::{JudgedResponse, StoredResponse};
use crate::chain::tip::Tip;
use crate::chain::{Freshness, Progress};
use crate::clock::Moment;
use crate::collapse::{FetchError, Follow, Lead, Mark, Role, Wait};
use crate::reason::Reason;
use crate::route::{HeaderMode, Route};
use crate::sync::lock;
use crate::trace;
use crate::trace::steps::{StepTimer, UpstreamStep};
use crate::upstream::{Failure, RequestBody};

type Give = oneshot::Sender<Result<Answer, Failure>>;

impl Fetch {
    pub(crate) fn key(&self) -> &Key {
        &self.lookup.key
    }

    pub(crate) fn route(&self) -> &Route {
        self.fill.route(self.key())
    }

    /// The tip of its route.
    pub(super) fn tip(&self) -> &Tip {
        self.fill.chain.tip(self.route().cache.tip)
    }

    /// Whether its route passes no field of a client.
    pub(super) fn is_typed(&self) -> bool {
        self.route().headers == HeaderMode::Typed
    }

    /// Whether it is on a plain route.
    pub(crate) fn is_plain(&self) -> bool {
        self.route().is_plain()
    }

    /// Whether its answer may be sent on before it is whole.
    fn is_streamed(&self) -> bool {
        self.is_plain() || self.route().is_any_type()
    }

    /// The answer.
    ///
    /// # Errors
    /// Why the upstream failed. [`stale`](Self::stale) may answer then.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        body: Option<RequestBody>,
        wait: Wait,
    ) -> Result<Answer, Failure> {
        if body.is_some() {
            return self.alone(body).await;
        }
        if self.is_streamed() || self.why == Forward::Bypass {
            return self.share(wait).await;
        }
        let mut found = self.find(self.key(), wait).await?;
        if let Some((by_hash, _)) = &self.lookup.by_hash
            && !self.fill.is_answer(&self.lookup, &found.stored)
        {
            // Another block has this height by now: fetch by the hash.
            found = self.find(by_hash, wait).await?;
        }
        Ok(Answer::Stored(found))
    }

    /// The answer to a key of a route in mode `chain` or `override` that memory does not have:
    /// from stored windows, or by a fetch.
    async fn find(&self, key: &Key, wait: Wait) -> FillResult {
        if let Some(stored) = self.fill.cut_transaction(key) {
            // Also on disk: the index by which it was cut does not outlive the process.
            self.fill.take(key, &stored);
            let from = AnswerSource::Memory;
            return Ok(FillAnswer { stored, from });
        }
        match self.find_page(key, wait).await {
            Some(found) => found,
            None => self.fetch(key, wait).await,
        }
    }

    /// Fetches a key that its answer is made of, or waits for the fetch that is under way. Fails
    /// when the wait is over, or at once where the key has failed repeatedly.
    pub(super) async fn fetch(&self, key: &Key, wait: Wait) -> FillResult {
        let what = (key.clone().into(), Forward::UriMiss, None);
        let fetch = (self.fill).fetch_for(ClientRequest::own(), what, self.priority);
        let answer = fetch.share(wait).await;
        let has_led = fetch.has_led.load(Relaxed);
        self.has_led.fetch_or(has_led, Relaxed);
        match answer? {
            Answer::Stored(found) => Ok(found),
            Answer::Coming(..) | Answer::Passed(..) => Err(Failure::new(Reason::Internal)),
        }
    }

    /// The answer of one fetch, which all requests for the same share, or of a request of its
    /// own where it may not be shared.
    pub(super) async fn share(self: &Arc<Self>, wait: Wait) -> Result<Answer, Failure> {
        let (fill, key) = (&self.fill, self.key());
        let arrived = fill.clock.now();
        for round in 0..MOST_ATTEMPTS {
            let Some(shared) = self.shared_key() else {
                break;
            };
            if let Some(failure) = fill.failures.recent(key, fill.clock.now()) {
                self.has_led.store(true, Relaxed);
                return Err(failure);
            }
            let follow = match fill.collapse.join(&shared, fill.mark(key)) {
                Role::Lead(lead) => {
                    self.has_led.store(true, Relaxed);
                    let (give, take) = oneshot::channel();
                    // One request with conditions goes up as it is: its client may have a
                    // response that the origin does not let caches store.
                    let lead = self.clone().lead(lead, give, round > 0);
                    tokio::spawn(trace::inherit(lead));
                    let answer = timeout_at(wait.deadline, take).await;
                    let answer = answer.unwrap_or(Ok(Err(FetchError::TooLate.into())));
                    return answer.unwrap_or(Err(FetchError::Abandoned.into()));
                }
                Role::Follow(follow) => follow,
            };
            let is_outdated = fill.is_outdated(key, &follow);
            if is_outdated && self.is_plain() {
                // Its answer may take long to end, and is not for those who come now.
                fill.collapse.retire(&shared, &follow);
                continue;
            }
            let step = StepTimer::begin(UpstreamStep::Collapsed, &fill.clock);
            let found = follow.wait(wait).await;
            drop(step);
            match found {
                Ok(_) if is_outdated => {}
                Ok(Some(found)) => {
                    if let Some(found) = self.follow(found, arrived) {
                        return found.map(Answer::Stored);
                    }
                }
                Ok(None) | Err(FetchError::Abandoned) => {}
                Err(FetchError::NotSoon) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if !self.is_streamed() && self.shared_key().is_some() {
            return Err(outdated());
        }
        // The time spent waiting is part of the client's deadline.
        let answer = timeout_at(wait.deadline, self.alone(None)).await;
        answer.unwrap_or(Err(FetchError::TooLate.into()))
    }

    /// What the answer to another request means for this one, which arrived at a given time;
    /// `None` where it joins others again, or leads.
    fn follow(&self, found: FillResult, arrived: Moment) -> Option<FillResult> {
        match found {
            // The leader's client has used up its share; this one may have not.
            Err(failure) if failure.is_of_client() => None,
            // Another variant may be stored, or the client want a newer one.
            Ok(found) if self.is_plain() => {
                let may_use = self.may_use(&found.stored, arrived);
                let from = AnswerSource::Upstream { stored: false };
                may_use.then_some(Ok(FillAnswer { from, ..found }))
            }
            found => Some(found),
        }
    }

    /// Fetches for all that wait. The fetch belongs to no connection; the leader's own
    /// client has its answer through `give`, as soon as it begins.
    async fn lead(self: Arc<Self>, lead: Lead<Announced>, give: Give, again: bool) {
        let Fetched { own, mut all, rest } = self.obtain(again).await;
        let mut own = Some((give, own));
        let mut give = || {
            if let Some((give, own)) = own.take() {
                // Fails if the client has disconnected.
                let _ = give.send(own);
            }
        };
        if let Some(collecting) = rest {
            give();
            lead.coming();
            all = collecting.run().await;
        }
        let (failures, key) = (&self.fill.failures, self.key());
        match &all {
            Some(Err(failure)) => failures.fail(key, failure, self.fill.clock.now()),
            Some(Ok(_)) | None => failures.forget(key),
        }
        lead.finish(all);
        give();
    }

    /// What is found in memory by now, in the state directory, at another replica, or upstream.
    async fn obtain(self: &Arc<Self>, again: bool) -> Fetched {
        if let Some(stored) = self.stored_meanwhile() {
            let from = AnswerSource::Memory;
            return Fetched::by_all(Ok(FillAnswer { stored, from }));
        }
        if self.is_plain() || self.why == Forward::Request {
            return self.exchange(None, again).await;
        }
        if self.route().cache.mode == Mode::Chain {
            // Without a tip, nothing of what others have can be used, nor an
            // answer be stored for more than a second.
            self.tip().reach(Progress::Probed, FIRST_PROBE).await;
        }
        match self.recall().await {
            Ok(found) => Fetched::by_all(Ok(found)),
            Err(lock) => {
                let mut fetched = self.exchange(None, again).await;
                if let Some(coming) = &mut fetched.rest {
                    coming.lock = lock;
                } else if let Some((lock, found)) = lock.zip(fetched.all.as_ref()) {
                    self.fill.give(lock, found).await;
                }
                fetched
            }
        }
    }

    /// Fetches for this client alone.
    async fn alone(self: &Arc<Self>, body: Option<RequestBody>) -> Result<Answer, Failure> {
        self.has_led.store(true, Relaxed);
        let under_way = Alone::of(self);
        let Fetched { own, rest, .. } = self.exchange(body, false).await;
        if let Some(collecting) = rest {
            tokio::spawn(trace::inherit(async move {
                let _under_way = under_way;
                collecting.run().await
            }));
        }
        own
    }

    /// Whether a fetch is under way that it would wait for.
    pub(crate) fn joins(&self) -> bool {
        let is_fetched = |key: Vec<u8>| self.fill.collapse.has(&key);
        match self.is_plain() {
            true => self.shared_key().is_some_and(is_fetched),
            false => self.fill.is_under_way(self.key()),
        }
    }

    /// The stale response that may answer though the upstream has not, or with an error (RFC
    /// 5861 §4, RFC 9111 §4.2.4). Not one that was purged meanwhile, or whose height and hash a
    /// reorg has separated.
    pub(crate) fn stale(&self) -> Option<JudgedResponse> {
        let stale = self.stored.as_ref()?;
        let failed = Some(self.route().cache.stale_if_error);
        let is_usable = match self.is_plain() {
            true => self.reuse(&stale.stored, failed) == Some(Reuse::IfError),
            false => self.fill.is_answer(&self.lookup, &stale.stored),
        };
        let store = self.fill.cache.store();
        let is_purged = || store.response_was_purged(self.key(), &stale.stored);
        (is_usable && !is_purged()).then(|| stale.clone())
    }

    /// Fetches again what is stale, for nobody in particular, unless a fetch is under way, or the
    /// answer could not be shared.
    pub(crate) fn refresh(&self) {
        let (fill, own) = (&self.fill, self.revalidation());
        let Some(key) = own.shared_key().filter(|_| !own.joins()) else {
            return;
        };
        self.has_led.store(true, Relaxed);
        if !own.is_plain() {
            let wait = Wait::until(Instant::now() + fill.longest_wait(own.key()));
            tokio::spawn(async move { own.answer(None, wait).await });
        } else if fill.failures.recent(own.key(), fill.clock.now()).is_none()
            && let Role::Lead(lead) = fill.collapse.join(&key, fill.mark(own.key()))
        {
            // It follows nobody: if that answer cannot be shared, it would be sent for nobody.
            tokio::spawn(own.lead(lead, oneshot::channel().0, false));
        }
    }
}

/// A key that is fetched for one client alone, until this is dropped: an unsafe method must know
/// of it. Unsafe requests are not among them.
struct Alone(Arc<Fetch>);

impl Alone {
    fn of(fetch: &Arc<Fetch>) -> Option<Self> {
        let is_safe = fetch.request.method.is_safe();
        is_safe.then(|| {
            lock(&fetch.fill.alone).push(fetch.key().clone());
            Self(fetch.clone())
        })
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let mut keys = lock(&self.0.fill.alone);
        if let Some(at) = keys.iter().position(|key| key == self.0.key()) {
            keys.swap_remove(at);
        }
    }
}

impl Fill {
    /// Where a key is in the order of purges and epochs.
    fn mark(&self, key: &Key) -> Mark {
        let (mode, tip) = (self.route(key).cache.mode, self.route(key).cache.tip);
        let epoch = (mode == Mode::Chain).then(|| self.chain.tip(tip).view().epoch);
        Mark {
            purges: self.cache.store().purges(),
            epoch: epoch.unwrap_or_default(),
        }
    }

    /// Whether the answer of a fetch is not for those who come now: it may have been
    /// requested before a purge, or before the present tip.
    fn is_outdated(&self, key: &Key, fetch: &Follow<Announced>) -> bool {
        let (began, now) = (fetch.mark, self.mark(key));
        began.epoch != now.epoch || self.cache.store().may_be_purged(key, began.purges)
    }

    /// What is stored for a key and fresh.
    pub(super) fn fresh(&self, key: &Key) -> Option<Arc<StoredResponse>> {
        let JudgedResponse {
            stored, freshness, ..
        } = self.cache.get(key, self.clock.now())?;
        match freshness {
            Freshness::Fresh { .. } => Some(stored),
            // The next lookup would report it as recent, so it is stored as final now.
            Freshness::BecameFinal => Some(self.store_as_final(key, &stored)),
            Freshness::Stale { .. } => None,
        }
    }
}

/// Each answer so far was purged, or of an earlier tip, when it came.
pub(super) fn outdated() -> Failure {
    Failure::until(Reason::Outdated, Duration::from_secs(1))
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Abandoned => Self::new(Reason::Internal),
            FetchError::TooLate | FetchError::NotSoon => Self::new(Reason::UpstreamTimeout),
        }
    }
}
