//! What outlives the process: two SQLite databases in a directory.
//!
//! | file | what it has |
//! |---|---|
//! | `answers.db` | stored responses, and the hashes of known blocks ([`Answers`]); it may be deleted while ordgate is stopped |
//! | `spent.db` | what each provider key has spent of its budget ([`Spent`]) |
//! | `lock` | nothing; the process that uses the directory holds a lock on it |
//!
//! While ordgate is stopped, an operator opens both with `sqlite3`. Each has a thread with a
//! connection of its own. A database that is damaged or is another program's is begun
//! anew, and the log says so. After an error while ordgate runs, it goes on without that
//! database until it is restarted.

mod answers;
mod database;
mod directory;
mod spent;
pub mod value;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use answers::{Answers, AnswersSnapshot, BlockHash, PurgeRows, Row, RowKey};
pub use spent::{Earlier, KeyDigest, Spent, SpentId, SpentSnapshot};

use crate::clock::Clock;

/// Where state is kept, and how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory. It is created if it does not exist.
    pub path: PathBuf,
    /// The most bytes that `answers.db` and its log may have.
    pub max_bytes: u64,
}

/// What outlives the process. By default nothing does.
#[derive(Clone, Default)]
pub struct State {
    /// The stored responses.
    pub answers: Answers,
    /// What was spent.
    pub spent: Spent,
}

/// How long another process that uses the directory is waited for: it may be about to end.
const PATIENCE: Duration = Duration::from_secs(5);

impl State {
    /// Opens the directory. It waits up to five seconds for another process that uses it.
    ///
    /// # Errors
    /// Why the directory cannot be used.
    pub fn open(settings: &Settings, clock: &Clock) -> Result<Self, StateError> {
        Self::open_within(settings, clock, PATIENCE)
    }

    fn open_within(
        settings: &Settings,
        clock: &Clock,
        patience: Duration,
    ) -> Result<Self, StateError> {
        let lock = directory::open(&settings.path, patience)?;
        Ok(Self {
            answers: Answers::open(settings, clock, &lock)?,
            spent: Spent::open(&settings.path, clock, &lock)?,
        })
    }
}

/// Why the state directory cannot be used, or a purge could not be made durable.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It cannot be created.
    #[error(
        "state.path {}: the directory cannot be created: {error}; allowed is a directory that exists, or a new one in a directory to which ordgate can write", path.display()
    )]
    Create {
        /// Its path.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There is something else of that name.
    #[error("{} is {what}; allowed is {allowed}: remove it, or set another state.path", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// What it may be.
        allowed: &'static str,
    },
    /// It belongs to another user.
    #[error(
        "{} belongs to user {owner}, and ordgate runs as user {user}; allowed are a directory and files of that user: chown -R {user} {}, or set another state.path",
        path.display(), path.display()
    )]
    Owner {
        /// The directory, or the file in it.
        path: PathBuf,
        /// The id of the user that it belongs to.
        owner: u32,
        /// The id of the user of this process.
        user: u32,
    },
    /// Other users have access to it.
    #[error(
        "{} has mode {mode:04o}; allowed is a mode that gives no access to group and others: chmod go= {}", path.display(), path.display()
    )]
    TooOpen {
        /// The directory, or the file in it.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It cannot be read or written.
    #[error(
        "{} cannot be used: {error}; allowed is a directory on a disk with free space, in which ordgate can read and write files", path.display()
    )]
    Access {
        /// The directory, or the file in it.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// Another process uses it.
    #[error(
        "{} is in use by another process; allowed is one process for each directory: stop the other one, or set another state.path", path.display()
    )]
    InUse {
        /// The file that is locked.
        path: PathBuf,
    },
    /// A purge is not on disk: what was purged may come back after a restart.
    #[error(
        "the purge is not on disk: {error}; stop ordgate and delete {}", path.display()
    )]
    Purge {
        /// The database.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

#[cfg(test)]
mod tests;
