//! One indexer's tip: its ledger, what hits need of it without a lock, and the state of
//! the requests for its status.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::freshness::{ChainStamp, Class, FinalitySettings, Freshness, View};
use super::ledger::{Applied, Ledger, Observation, RequestStart};
use crate::clock::Moment;
use crate::pages::{Hash, hex};
use crate::sync::lock;

/// Where an indexer's tip is asked for.
#[derive(Clone, Debug, Default)]
pub struct TipSource {
    /// Its name in the configuration of routes.
    pub name: Box<str>,
    /// Its status path; `None` where there is none, and the tip is never known.
    pub path: Option<Box<str>>,
    /// The time from one status to the next.
    pub(crate) every: Duration,
    /// The number of its upstream.
    pub(crate) upstream: u16,
    /// The upstream's name.
    pub(crate) upstream_name: Box<str>,
}

impl TipSource {
    /// How long a tip counts as known after the last status was asked for: one may fail.
    pub(crate) const fn known_for(&self) -> Duration {
        self.every.saturating_mul(2)
    }
}

/// One indexer's tip.
pub(crate) struct Tip {
    /// Where it is asked for.
    pub(crate) source: TipSource,
    pub(super) finality: FinalitySettings,
    /// What is known of it, which outlives a reload.
    pub(crate) state: Arc<TipState>,
}

/// What is known of a tip.
pub(crate) struct TipState {
    ledger: Mutex<Ledger>,
    /// What hits need of the ledger.
    pub(crate) view: ArcSwap<View>,
    /// Held while blocks are asked for.
    pub(crate) checking: tokio::sync::Mutex<()>,
    /// Notified when the status should be asked for before the next is due.
    pub(crate) probe_request: Notify,
    progress: watch::Sender<Progress>,
}

/// How much of a start is over, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// The first request for the status has not ended.
    Started,
    /// It has ended, but not the one for the highest block that an earlier run knew.
    Probed,
    /// One of the two had no answer.
    Unanswered,
    /// It is known which blocks of an earlier run stand; or there is no status path.
    Confirmed,
}

impl Tip {
    /// A tip of which nothing is known.
    pub(super) fn new(source: &TipSource, finality: &FinalitySettings) -> Self {
        let state = TipState {
            ledger: Mutex::default(),
            view: ArcSwap::from_pointee(Ledger::default().view(finality.final_depth, source.every)),
            checking: tokio::sync::Mutex::default(),
            probe_request: Notify::new(),
            progress: watch::Sender::new(match source.path {
                Some(_) => Progress::Started,
                None => Progress::Confirmed,
            }),
        };
        Self {
            source: source.clone(),
            finality: finality.clone(),
            state: Arc::new(state),
        }
    }

    /// Reads the ledger.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T {
        read(&self.ledger())
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.state.ledger)
    }

    /// What hits need of it.
    pub(crate) fn view(&self) -> View {
        **self.state.view.load()
    }

    /// The height of a block in the chain.
    pub(crate) fn height_of(&self, hash: &Hash) -> Option<u32> {
        self.ledger().heights.get(hash).copied()
    }

    /// Changes the ledger, and makes what hits need of it visible to all threads before
    /// this returns.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let mut ledger = self.ledger();
        let (reorgs, moved) = (ledger.reorgs, ledger.moved);
        let changed = change(&mut ledger);
        let view = ledger.view(self.finality.final_depth, self.source.every);
        self.state.view.store(Arc::new(view));
        if ledger.tip_height().is_some() && ledger.doubt.is_none() {
            self.advance(Progress::Confirmed);
        }
        let (tip, epoch) = (&*self.source.name, ledger.view.epoch);
        if moved < ledger.moved {
            let height = ledger.tip_height();
            tracing::info!(tip, height, epoch, "the tip has moved");
        }
        if reorgs < ledger.reorgs {
            let blocks = ledger.last_reorg.map(|(_, blocks)| blocks);
            tracing::info!(
                tip,
                stands = ledger.stands,
                blocks,
                epoch,
                "reorg: responses that name blocks above the highest one that stands are purged"
            );
        }
        changed
    }

    /// Notes how much of the start is over.
    pub(crate) fn advance(&self, to: Progress) {
        self.state.progress.send_if_modified(|progress| {
            let is_more = *progress < to;
            *progress = to.max(*progress);
            is_more
        });
    }

    /// How much of the start is over, after a wait until that is `enough`, at most for
    /// `max_wait`.
    pub(crate) async fn reach(&self, enough: Progress, max_wait: Duration) -> Progress {
        let mut progress = self.state.progress.subscribe();
        let reached = progress.wait_for(|progress| *progress >= enough);
        let _in_time = tokio::time::timeout(max_wait, reached).await.is_ok();
        *self.state.progress.borrow()
    }

    /// Applies a status, requested at `sent`, here or by another replica: then it has no
    /// `start`. Returns from which height on everything is to be purged, if anything is.
    pub(crate) fn apply_status(
        &self,
        (start, sent): (Option<RequestStart>, Moment),
        height: u32,
        tag: Option<&[u8]>,
        now: Moment,
    ) -> Option<u32> {
        let is_lost = self.was_known() && !self.is_known(now);
        let lost = is_lost.then(|| self.view().known_until());
        let purge = self.change(|ledger| {
            ledger.view.confirmed = ledger.view.confirmed.max(sent);
            if ledger.trouble.take().is_some() {
                tracing::info!(tip = &*self.source.name, "the tip is known again");
            }
            ledger.status(start, height, tag, lost, now)
        });
        self.advance(Progress::Probed);
        purge
    }

    /// A request for the status had no answer, or one without a tip.
    pub(crate) fn probe_failed(&self, why: String) {
        let mut ledger = self.ledger();
        ledger.probes += 1;
        ledger.failures += 1;
        if ledger.trouble.as_ref() != Some(&why) {
            tracing::warn!(
                tip = &*self.source.name,
                upstream = &*self.source.upstream_name,
                why,
                "the tip is unknown: what is not final is fresh for a second only"
            );
        }
        ledger.trouble = Some(why);
        drop(ledger);
        self.advance(Progress::Unanswered);
    }

    /// Applies an answer that is not a status.
    pub(crate) fn apply_answer(
        &self,
        start: RequestStart,
        observation: Observation<'_>,
        now: Moment,
    ) -> Applied {
        let interval = self.view().interval;
        let applied = self.change(|ledger| ledger.apply(start, observation, interval, now));
        if applied.asks_status {
            self.state.probe_request.notify_one();
        }
        applied
    }

    /// The time until the next status is due; zero where one is due.
    pub(crate) fn until_next_probe(&self, now: Moment) -> Duration {
        let view = self.state.view.load();
        (view.confirmed + view.interval).since(now)
    }

    /// Whether a stored response is fresh, and its age. That of what is not final leaves
    /// clients as much of [`client_lifetime`](Self::client_lifetime) as they can rely on it:
    /// until the status after the next, at most.
    pub(crate) fn freshness(
        &self,
        stamp: &ChainStamp,
        times: (Moment, Duration),
        now: Moment,
    ) -> (Freshness, Duration) {
        let view = self.state.view.load();
        let freshness = view.freshness(stamp, times, &self.finality, now);
        let age = match (stamp.class, freshness) {
            (Class::Recent | Class::Live, Freshness::Fresh { ttl }) => {
                // Sent in whole seconds, it must not promise a part of one more.
                let left = Duration::from_secs(ttl.as_secs());
                self.client_lifetime(stamp.class).saturating_sub(left)
            }
            _ => now.since(times.0),
        };
        (freshness, age)
    }

    /// The `max-age` of a response.
    pub(crate) fn client_lifetime(&self, class: Class) -> Duration {
        match class {
            Class::Final | Class::Absent => class.lifetime(),
            Class::Recent | Class::Live => self.source.known_for(),
        }
    }

    /// Whether a status has confirmed it lately; else freshness goes by time.
    pub(crate) fn is_known(&self, now: Moment) -> bool {
        now <= self.view().known_until()
    }

    /// Whether it has ever been known.
    pub(crate) fn was_known(&self) -> bool {
        self.view().confirmed > Moment::default()
    }

    /// What `/status` and `/metrics` show of it. Whether it is known is said only where it is
    /// probed.
    pub(crate) fn snapshot(&self, is_probed: bool, now: Moment) -> Value {
        let was_known = self.was_known();
        let ledger = self.ledger();
        let (view, height) = (&ledger.view, ledger.tip_height());
        let ago = |at: Moment| now.since(at).as_secs_f64();
        json!({
            "name": self.source.name,
            "upstream": self.source.upstream_name,
            "path": self.source.path,
            "known": is_probed.then(|| self.is_known(now)),
            "known_once": is_probed.then_some(was_known),
            "height": height,
            "hash": height.and_then(|height| ledger.hash_at(height)).map(|hash| hex(&hash)),
            "epoch": view.epoch,
            // While there is one, nothing becomes final.
            "checking": ledger.doubt.map(|doubt| doubt.height),
            "probes": ledger.probes,
            "failures": ledger.failures,
            "moved_seconds_ago": ledger.moved.map(ago),
            "reorgs": ledger.reorgs,
            "last_reorg": ledger.last_reorg.map(|(at, blocks)| {
                json!({ "seconds_ago": ago(at), "blocks": blocks })
            }),
            "blocks": ledger.blocks.len(),
            "trouble": ledger.trouble,
        })
    }
}
