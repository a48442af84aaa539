//! `[state]`: what is kept on disk.

use std::path::PathBuf;

use serde::Serialize;

use super::key::keys;
use super::kinds::{ParsedText, optional, size, text, when};
use crate::{state, units};

/// Where state is kept, and how much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StateSettings {
    /// The directory; `None` where nothing is kept.
    pub path: Option<PathBuf>,
    /// The most bytes of stored responses.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_bytes: u64,
}

const DIRECTORY: ParsedText<String> = text("the path of a directory", "^[^\\u0000]+$", |text| {
    when(!text.is_empty() && !text.contains('\0'), text)
});

keys! {
    /// What is kept on disk, so that a restart loses nothing and spends no budget twice.
    pub(super) struct StateKeys {
        /// A directory for what each API key has spent, and for answers. Without it,
        /// nothing is kept on disk.
        ///
        /// It is created if it does not exist; it must belong to ordgate's user, and nobody
        /// else may have access to it. One process uses it at a time. --state and
        /// ORDGATE_STATE take precedence over this key; if none of them is set, systemd's
        /// STATE_DIRECTORY is used. Without a directory, a restart forgets what was spent in
        /// the last minute, and may exceed the budget. A change needs a restart.
        path: Option<String> = optional(DIRECTORY) => None,
            example("\"/var/lib/ordgate\""), shown();
        /// The most bytes of stored answers. A change needs a restart.
        max_bytes: u64 = size(32 << 20..=1 << 44) => 1 << 30, shown();
    }
}

impl StateSettings {
    /// The settings of the directory, if there is one.
    pub(crate) fn settings(&self) -> Option<state::Settings> {
        Some(state::Settings {
            path: self.path.clone()?,
            max_bytes: self.max_bytes,
        })
    }
}

impl StateKeys {
    pub(super) fn settings(&self) -> StateSettings {
        StateSettings {
            path: self.path.value.as_ref().map(PathBuf::from),
            max_bytes: *self.max_bytes,
        }
    }
}
