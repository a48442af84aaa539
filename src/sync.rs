//! Locks that stay usable after a panic of a thread that held them. Each operation on a
//! value behind a lock of ordgate leaves it consistent, so a panic does not leave it half
//! changed, and one request that panics does not make all later ones fail.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
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
