//! Locks that stay usable after a panic of a thread that held them, and counts behind one. Each
//! operation on a value behind a lock of ordgate leaves it consistent, so a panic does not leave
//! it half changed, and one request that panics does not make all later ones fail.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde::Serialize;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// How often each of some outcomes came, by name, for `/status` and metrics.
#[derive(Debug, Serialize)]
pub(crate) struct Outcomes(Mutex<BTreeMap<&'static str, u64>>);

impl Outcomes {
    /// None of these came yet.
    pub(crate) fn of<const N: usize>(outcomes: [&'static str; N]) -> Self {
        Self(Mutex::new(outcomes.map(|outcome| (outcome, 0)).into()))
    }

    /// Counts one, if it is one of these.
    pub(crate) fn count(&self, outcome: &str) {
        if let Some(count) = lock(&self.0).get_mut(outcome) {
            *count += 1;
        }
    }

    /// How often this one came.
    pub(crate) fn get(&self, outcome: &str) -> u64 {
        lock(&self.0).get(outcome).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_lock_is_usable_after_a_panic_of_its_holder() {
        let (mutex, shared) = (Mutex::new(1), RwLock::new(1));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let (_held, _written) = (lock(&mutex), write(&shared));
            panic!("while both are held");
        }));
        assert!(panicked.is_err() && mutex.is_poisoned() && shared.is_poisoned());
        *lock(&mutex) += 1;
        *write(&shared) += 1;
        assert_eq!((*lock(&mutex), *read(&shared)), (2, 2));
    }
}
