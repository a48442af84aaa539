//! The scripts for stored responses in Rust, for tests. A differential test runs both.

use std::collections::HashMap;
use std::sync::Mutex;

use super::{EntryName, FillToken, FoundEntry, GivenUp, LookUp, LookedUp, PutEntry, SharedEntries};
use crate::clock::{Clock, Moment};
use crate::shared::engine::{EngineFuture, SharedError};
use crate::sync::lock;

/// What the engine has under the keys of one response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryRow {
    /// The response.
    pub entry: Option<PutEntry>,
    /// Its lock.
    pub lock: Option<EntryLock>,
}

/// What the engine has under the key of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryLock {
    /// A process fetches the response with this token.
    Held(FillToken),
    /// What was fetched last is not stored: nobody is to wait for a fetch.
    Unlocked,
}

impl EntryRow {
    /// Looks up the response.
    pub fn look_up(&mut self, look_up: &LookUp) -> FoundEntry {
        if let Some(entry) = &self.entry
            && Some(entry.token) != look_up.unusable
        {
            return FoundEntry::Have {
                id: entry.token,
                value: entry.value.clone(),
            };
        }
        match (look_up.lock_ms, self.lock) {
            (0, _) | (_, Some(EntryLock::Unlocked)) => FoundEntry::None,
            (_, Some(EntryLock::Held(_))) => FoundEntry::Follow,
            (_, None) => {
                self.lock = Some(EntryLock::Held(look_up.token));
                FoundEntry::Lead
            }
        }
    }

    /// Stores a response.
    pub fn put(&mut self, entry: &PutEntry) -> bool {
        let order = |entry: &PutEntry| (entry.record.clone(), entry.received_ms);
        let is_later = self.entry.as_ref().is_some_and(|stored| {
            stored.generation == entry.generation && order(stored) > order(entry)
        });
        if !is_later {
            self.entry = Some(entry.clone());
        }
        self.give_up(GivenUp {
            token: entry.token,
            unlocked_ms: 0,
        });
        !is_later
    }

    /// Gives up the lock.
    pub fn give_up(&mut self, given_up: GivenUp) -> bool {
        let is_own = self.lock == Some(EntryLock::Held(given_up.token));
        if is_own {
            self.lock = (given_up.unlocked_ms > 0).then_some(EntryLock::Unlocked);
        }
        is_own
    }
}

/// A stored response, or a lock, and when it expires.
#[derive(Default)]
struct ExpiringRow {
    row: EntryRow,
    entry_until: Moment,
    lock_until: Moment,
}

/// An engine in memory. What it keeps expires by a clock.
pub struct ModelEntries {
    rows: Mutex<HashMap<String, ExpiringRow>>,
    clock: Clock,
    is_absent: Mutex<bool>,
}

impl ModelEntries {
    /// An engine that has nothing.
    pub fn new(clock: Clock) -> Self {
        Self {
            rows: Mutex::default(),
            clock,
            is_absent: Mutex::new(false),
        }
    }

    /// Makes all calls fail from now on, or no longer.
    pub fn set_absent(&self, is_absent: bool) {
        *lock(&self.is_absent) = is_absent;
    }

    fn with<T>(
        &self,
        name: &EntryName,
        apply: impl FnOnce(&mut ExpiringRow, Moment) -> T,
    ) -> Result<T, SharedError> {
        if *lock(&self.is_absent) {
            return Err(SharedError::Absent);
        }
        let now = self.clock.now();
        let mut rows = lock(&self.rows);
        let kept = rows.entry(name.value.clone()).or_default();
        if kept.entry_until <= now {
            kept.row.entry = None;
        }
        if kept.lock_until <= now {
            kept.row.lock = None;
        }
        Ok(apply(kept, now))
    }
}

impl SharedEntries for ModelEntries {
    fn look_up<'t>(
        &'t self,
        name: &'t EntryName,
        look_up: &'t LookUp,
    ) -> EngineFuture<'t, LookedUp> {
        Box::pin(async move {
            self.with(name, |kept, now| {
                let found = kept.row.look_up(look_up);
                if found == FoundEntry::Lead {
                    kept.lock_until = now + std::time::Duration::from_millis(look_up.lock_ms);
                }
                LookedUp {
                    now_ms: now.millis(),
                    found,
                }
            })
        })
    }

    fn put<'t>(&'t self, name: &'t EntryName, entry: &'t PutEntry) -> EngineFuture<'t, bool> {
        Box::pin(async move {
            self.with(name, |kept, now| {
                let is_stored = kept.row.put(entry);
                if is_stored {
                    kept.entry_until = now + std::time::Duration::from_millis(entry.stay_ms);
                }
                is_stored
            })
        })
    }

    fn give_up<'t>(&'t self, name: &'t EntryName, given_up: GivenUp) -> EngineFuture<'t, bool> {
        Box::pin(async move {
            self.with(name, |kept, now| {
                let was_own = kept.row.give_up(given_up);
                if was_own {
                    let unlocked = std::time::Duration::from_millis(given_up.unlocked_ms);
                    kept.lock_until = now + unlocked;
                }
                was_own
            })
        })
    }
}
