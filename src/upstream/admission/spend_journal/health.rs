//! Whether the journal is written, for logs, `/status` and `/metrics`.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::PATIENCE;
use super::books::Books;
use crate::clock::Moment;
use crate::sync::lock;

#[derive(Default)]
pub(super) struct Health {
    /// What is wrong now.
    trouble: Mutex<Option<Trouble>>,
    is_failing: AtomicBool,
    /// Pages written.
    pub(super) writes: AtomicU64,
    errors: AtomicU64,
    stalls: AtomicU64,
    /// Requests sent that were not journalled before.
    pub(super) unjournalled: AtomicU64,
}

enum Trouble {
    Error(String),
    Stalled,
}

/// The state of the journal.
#[derive(Clone, Debug)]
pub(crate) struct JournalSnapshot {
    /// One of [`STATES`](Self::STATES).
    pub(crate) state: &'static str,
    pub(crate) error: Option<String>,
    pub(crate) writes: u64,
    pub(crate) errors: u64,
    pub(crate) stalls: u64,
    pub(crate) unjournalled: u64,
    /// Requests of earlier processes that were found at the start.
    pub(crate) recovered: u64,
    /// How long keys are not used because their spending before the start is unknown.
    pub(crate) waiting: Duration,
    /// Why it is.
    pub(crate) unknown_because: Option<&'static str>,
}

impl JournalSnapshot {
    /// What the journal may be.
    pub(crate) const STATES: [&str; 3] = ["written", "failing", "stalled"];
}

impl Health {
    /// A read or write has failed.
    pub(super) fn fail(&self, error: &io::Error) {
        self.errors.fetch_add(1, Relaxed);
        let mut trouble = self.trouble();
        let is_new = trouble.is_none();
        *trouble = Some(Trouble::Error(error.to_string()));
        self.is_failing.store(true, Relaxed);
        drop(trouble);
        if is_new {
            tracing::error!(
                %error,
                "the spend journal cannot be written: requests are answered and sent as before, but after a restart API keys are not used for a minute; it is tried again each second"
            );
        }
    }

    /// The next process cannot be told.
    pub(super) fn cannot_mark(&self, error: &io::Error) {
        tracing::debug!(%error, "the spend journal can neither be marked as incomplete nor be removed");
    }

    /// A write has taken too long.
    pub(super) fn stall(&self) {
        let mut trouble = self.trouble();
        if trouble.is_some() {
            return;
        }
        *trouble = Some(Trouble::Stalled);
        self.is_failing.store(true, Relaxed);
        self.stalls.fetch_add(1, Relaxed);
        drop(trouble);
        tracing::error!(
            "the disk has taken no write of the spend journal for {PATIENCE:?}: requests no longer wait for it; if ordgate is killed meanwhile, the next start may exceed the budget"
        );
    }

    /// It is written again, and complete.
    pub(super) fn recover(&self) {
        *self.trouble() = None;
        self.is_failing.store(false, Relaxed);
        tracing::info!("the spend journal is written again, and complete");
    }

    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Relaxed)
    }

    pub(super) fn snapshot(&self, books: &Books, now: Moment) -> JournalSnapshot {
        let [written, failing, stalled] = JournalSnapshot::STATES;
        let (state, error) = match &*self.trouble() {
            None => (written, None),
            Some(Trouble::Error(error)) => (failing, Some(error.clone())),
            Some(Trouble::Stalled) => (stalled, None),
        };
        let waiting = books.waiting(now);
        JournalSnapshot {
            state,
            error,
            writes: self.writes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            stalls: self.stalls.load(Relaxed),
            unjournalled: self.unjournalled.load(Relaxed),
            recovered: books.recovered(),
            waiting,
            unknown_because: books.reason().filter(|_| !waiting.is_zero()),
        }
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        lock(&self.trouble)
    }
}
