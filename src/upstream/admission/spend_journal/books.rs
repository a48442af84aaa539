//! What the journal's file has: which budget has which page, and what earlier processes
//! have spent.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::file::{BYTES, FileHeader, SLOTS};
use crate::clock::Moment;
use crate::state_dir::BootId;
use crate::upstream::admission::budget::LONGEST_WAIT;
use crate::upstream::admission::restrictions::Restrictions;
use crate::upstream::admission::shared_budget::SharedBudget;
use crate::upstream::admission::spending::{self, EarlierSpending, PAGE, Stamp, Unreadable};

type Name = [u8; 16];

/// Why the spending of other processes is not known.
const UNUSED: &str =
    "replicas share the budgets, and none has used this state directory in the last minute";
const NEW_KEY: &str = "replicas share the budgets, and an API key is new in this state directory";

/// The content of the journal.
#[derive(Default)]
pub(super) struct Books {
    /// The budget of each page, from page 1 on.
    slots: Vec<Option<Name>>,
    /// What earlier processes have spent.
    earlier: HashMap<Name, EarlierSpending>,
    /// Why other budgets are unknown, if they are, and before which moment.
    unknown: Option<(&'static str, Moment)>,
    /// When it was read.
    read_at: Moment,
    /// When a page was written last.
    last_written: Option<Moment>,
    /// Whether replicas share the budgets.
    is_shared: bool,
    /// Pages that say nothing and are to be cleared.
    pub(super) useless: Vec<usize>,
    /// The budgets in use, and some that were.
    pub(super) budgets: Vec<Weak<SharedBudget>>,
    /// Whether a budget has no page.
    pub(super) is_full: bool,
    /// Whether the file's header does not say so yet.
    pub(super) header_is_due: bool,
}

impl Books {
    /// Nothing is known of what was spent before.
    pub(super) fn unknown(reason: &'static str, at: Stamp) -> Self {
        Self {
            unknown: Some((reason, at.now)),
            read_at: at.now,
            ..Self::default()
        }
    }

    /// Reads the whole file.
    pub(super) fn read(bytes: &[u8], boot: Option<&BootId>, at: Stamp) -> Self {
        let mut pages = bytes.chunks(PAGE).take(SLOTS + 1);
        let header = FileHeader::read(pages.next().unwrap_or_default(), boot, at.since_boot);
        let mut books = match header {
            Err(reason) => Self::unknown(reason, at),
            Ok(header) if header.is_incomplete => {
                Self::unknown("the process before could not write its journal", at)
            }
            Ok(header) => Self {
                unknown: header.unknown_before.map(|before| {
                    let before = at.now.before(at.since_boot.saturating_sub(before));
                    ("an earlier start did not know it", before)
                }),
                read_at: at.now,
                ..Self::default()
            },
        };
        let is_unknown = books.unknown.is_some_and(|(_, before)| before == at.now);
        // The pages need not say it: an earlier start may have ended before it wrote them.
        let header_unknown_before = books.unknown_before();
        for (slot, page) in (1..).zip(pages) {
            let read = spending::read(page, boot, at);
            books.slots.push(None);
            match read {
                Ok((name, mut earlier)) => {
                    let written = at.now.before(spending::age(page, at));
                    books.last_written = books.last_written.max(Some(written));
                    earlier.unknown_before = earlier.unknown_before.max(header_unknown_before);
                    books.slots[slot - 1] = Some(name);
                    if is_unknown {
                        earlier.forget_spending(at.now);
                    }
                    books.earlier.insert(name, earlier);
                }
                Err(Unreadable::Empty) => {}
                Err(Unreadable::OtherBoot) => books.add_of_other_boot(slot, page, at.now),
                Err(Unreadable::Damaged) => {
                    books.useless.push(slot);
                    books.unknown = Some(("a page of the journal is damaged", at.now));
                }
            }
        }
        if (bytes.len() as u64) < BYTES {
            books.unknown = Some(("the journal is torn", at.now));
        }
        books
    }

    /// Takes over what providers had asked for before the machine was restarted.
    fn add_of_other_boot(&mut self, slot: usize, page: &[u8], now: Moment) {
        let read = spending::read_of_other_boot(page, now);
        let read = read.filter(|(_, restrictions)| *restrictions != Restrictions::default());
        let Some((name, restrictions)) = read else {
            return self.useless.push(slot);
        };
        // The page stays until it is written anew.
        self.slots[slot - 1] = Some(name);
        let earlier = EarlierSpending {
            unknown_before: self.unknown_before(),
            restrictions,
            ..EarlierSpending::default()
        };
        self.earlier.insert(name, earlier);
    }

    /// Replicas share the budgets: this process may have come in place of one with
    /// another directory. Only what a process has written here a short time ago says what
    /// was spent in its place.
    pub(super) fn share(&mut self, now: Moment) {
        (self.is_shared, self.read_at) = (true, now);
        let is_recent = |written| now.since(written) < LONGEST_WAIT;
        if self.last_written.is_some_and(is_recent) {
            return;
        }
        self.unknown = Some((UNUSED, now));
        for earlier in self.earlier.values_mut() {
            earlier.forget_spending(now);
        }
    }

    /// Says in the log what was found.
    pub(super) fn log(&self, directory: &Path, now: Moment) {
        let waiting = self.waiting(now);
        if let Some((reason, _)) = self.unknown.filter(|_| !waiting.is_zero()) {
            tracing::warn!(
                directory = %directory.display(),
                seconds = waiting.as_secs(),
                "what the API keys had spent before the start is not known, since {reason}: keys with a limit a minute are not used until it counts no more"
            );
        }
        let requests = self.recovered();
        if requests > 0 {
            tracing::info!(
                directory = %directory.display(),
                requests,
                "requests of an earlier process count in the budget still"
            );
        }
    }

    /// Requests of earlier processes that were found.
    pub(super) fn recovered(&self) -> u64 {
        self.earlier.values().map(EarlierSpending::requests).sum()
    }

    /// How long keys are not used whose spending is unknown, and why.
    pub(super) fn waiting(&self, now: Moment) -> Duration {
        let until = self.unknown.map(|(_, before)| before + LONGEST_WAIT);
        until.map_or(Duration::ZERO, |until| until.since(now))
    }

    pub(super) fn reason(&self) -> Option<&'static str> {
        self.unknown.map(|(reason, _)| reason)
    }

    /// Before which moment budgets without a page are unknown.
    pub(super) fn unknown_before(&self) -> Option<Moment> {
        self.unknown.map(|(_, before)| before)
    }

    /// The budgets in use.
    pub(super) fn live(&mut self) -> Vec<Arc<SharedBudget>> {
        self.budgets.retain(|budget| budget.strong_count() > 0);
        self.budgets.iter().filter_map(Weak::upgrade).collect()
    }

    /// The page of a budget, and what earlier processes have spent of it.
    pub(super) fn assign(&mut self, name: Name, now: Moment) -> (Option<usize>, EarlierSpending) {
        let is_known =
            self.earlier.contains_key(&name) || self.unknown_before() >= Some(self.read_at);
        if self.is_shared && !is_known && now.since(self.read_at) < LONGEST_WAIT {
            self.unknown = Some((NEW_KEY, self.read_at));
        }
        let unknown_before = self.unknown_before();
        let absent = EarlierSpending {
            unknown_before,
            ..EarlierSpending::default()
        };
        let earlier = self.earlier.get(&name).cloned().unwrap_or(absent);
        self.slots.resize(SLOTS, None);
        let place = |wanted: Option<Name>| self.slots.iter().position(|slot| *slot == wanted);
        let found = place(Some(name)).or_else(|| place(None));
        let found = found.or_else(|| self.forgettable(now));
        if let Some(found) = found {
            self.slots[found] = Some(name);
        } else {
            self.header_is_due |= !self.is_full;
            self.is_full = true;
        }
        (found.map(|found| found + 1), earlier)
    }

    /// A page of a budget that is not in use and of which nothing counts any more.
    fn forgettable(&mut self, now: Moment) -> Option<usize> {
        if now.since(self.read_at) < LONGEST_WAIT {
            return None;
        }
        let live = self.live();
        let used: Vec<_> = live.iter().filter_map(|budget| budget.entry()).collect();
        let is_used = |name: &Name| used.iter().any(|entry| entry.name() == name);
        let found = self
            .slots
            .iter()
            .position(|slot| slot.is_some_and(|name| !is_used(&name)))?;
        if let Some(name) = self.slots[found].take() {
            self.earlier.remove(&name);
        }
        Some(found)
    }
}
