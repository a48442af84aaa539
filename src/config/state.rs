//! `[state]`: what is kept on disk.

use std::path::PathBuf;
use std::time::Duration;

use super::key::keys;
use super::kinds::{ParsedText, YEAR, optional, seconds, size, text, time, when};
use crate::state_dir;

const DIRECTORY: ParsedText<String> = text("the path of a directory", "^[^\\u0000]+$", |text| {
    when(!text.is_empty() && !text.contains('\0'), text)
});

keys! {
    /// What is kept on disk, so that a restart loses nothing and spends no budget twice.
    pub(super) struct StateKeys {
        /// A directory for what each API key has spent, and for answers. Without it,
        /// nothing is kept on disk.
        ///
        /// It is created if it does not exist; nobody but ordgate's user may write to it.
        /// One process uses it at a time. --state and ORDGATE_STATE take precedence over
        /// this key; if none of them is set, systemd's STATE_DIRECTORY is used. Without a
        /// directory, a restart forgets what was spent in the last minute, and may exceed
        /// the budget. A change needs a restart.
        path: Option<String> = optional(DIRECTORY) => None,
            example("\"/var/lib/ordgate\""), shown();
        /// The most bytes of all files in the directory. A change needs a restart.
        max_bytes: u64 = size(32 << 20..=1 << 44) => 1 << 30, shown();
        /// Answers that are fresh for a shorter time are not kept on disk.
        min_freshness: Duration = time(Duration::ZERO, YEAR) => seconds(60);
    }
}

impl StateKeys {
    pub(super) fn settings(&self) -> state_dir::Settings {
        state_dir::Settings {
            path: self.path.value.as_ref().map(PathBuf::from),
            max_bytes: *self.max_bytes,
            min_freshness: *self.min_freshness,
        }
    }
}
