//! Stops a server as a whole, as SIGSTOP does.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex};

/// Stops a server as a whole; its kernel continues.
#[derive(Default)]
pub(super) struct Freezer {
    wanted: AtomicBool,
    is_frozen: Mutex<bool>,
    changed: Condvar,
    asked: tokio::sync::Notify,
}

impl Freezer {
    /// Stops the thread that runs this, whenever that is wanted.
    pub(super) async fn run(&self) {
        loop {
            self.asked.notified().await;
            let mut frozen = self.is_frozen.lock().unwrap();
            while self.wanted.load(SeqCst) {
                *frozen = true;
                self.changed.notify_all();
                frozen = self.changed.wait(frozen).unwrap();
            }
            *frozen = false;
        }
    }

    pub(super) fn freeze(&self) {
        self.wanted.store(true, SeqCst);
        self.asked.notify_one();
        let frozen = self.is_frozen.lock().unwrap();
        drop(self.changed.wait_while(frozen, |frozen| !*frozen).unwrap());
    }

    pub(super) fn thaw(&self) {
        let _frozen = self.is_frozen.lock().unwrap();
        self.wanted.store(false, SeqCst);
        self.changed.notify_all();
    }
}
