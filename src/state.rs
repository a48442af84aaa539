//! What outlives the process: two SQLite databases in a directory.
//!
//! | file | what it has |
//! |---|---|
//! | `answers.db` | stored responses, and the hashes of known blocks ([`Answers`]); it may be deleted while ordgate is stopped |
//! | `spent.db` | what each provider key has spent of its budget ([`Spent`]) |
//!
//! What they contain decides what clients are answered and how much may be spent. So the
//! directory and both files must belong to the user of the process, and nobody else may
//! have access.
//!
//! One process uses the directory, which it locks. While ordgate is stopped, an operator opens
//! both with `sqlite3`. Each has a thread with a connection of its own. A database that is damaged or is another
//! program's is begun anew, and the log says so. After an error while ordgate runs, it goes
//! on without that database until it is restarted.

mod answers;
mod database;
mod spent;
pub mod value;

use std::fmt::Display;
use std::fs::{self, DirBuilder, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub use answers::{Answers, AnswersSnapshot, BlockHash, PurgeRows, Row, RowKey};
use rustix::process::geteuid;
pub use spent::{Earlier, KeyDigest, Spent, SpentId};

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
        let path = &settings.path;
        if let Err(error) = DirBuilder::new().mode(0o700).create(path)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(access(path, error));
        }
        let user = geteuid().as_raw();
        check(
            path,
            &fs::metadata(path).map_err(|error| access(path, error))?,
            true,
            user,
        )?;
        for file in ["answers.db", "spent.db"].map(|name| path.join(name)) {
            if let Ok(found) = fs::symlink_metadata(&file) {
                check(&file, &found, false, user)?;
            }
        }
        let lock = lock(path, patience)?;
        let spent = Spent::open(&path.join("spent.db"), &lock, clock)?;
        let answers = Answers::open(settings, &lock, clock)?;
        Ok(Self { answers, spent })
    }
}

/// How often a lock is tried that another process holds.
const ATTEMPT_EVERY: Duration = Duration::from_millis(50);

/// Locks the directory until the last copy of the lock is dropped, and waits so long for another
/// process to end.
fn lock(path: &Path, patience: Duration) -> Result<Arc<File>, StateError> {
    let directory = File::open(path).map_err(|error| access(path, error))?;
    for _ in 0..=patience.as_millis() / ATTEMPT_EVERY.as_millis() {
        match directory.try_lock() {
            Ok(()) => return Ok(Arc::new(directory)),
            Err(TryLockError::Error(error)) => return Err(access(path, error)),
            Err(TryLockError::WouldBlock) => thread::sleep(ATTEMPT_EVERY),
        }
    }
    Err(in_use(path))
}

/// Refuses what is of another kind than it should be, or not only this user's.
fn check(path: &Path, found: &Metadata, is_directory: bool, user: u32) -> Result<(), StateError> {
    let (is_right, kind) = match is_directory {
        true => (found.is_dir(), "directory"),
        false => (found.is_file(), "file"),
    };
    let (shown, owner) = (path.display(), found.uid());
    let mode = found.permissions().mode() & 0o7777;
    let why = if !is_right {
        format!("is not a {kind}: remove it, or set another state.path")
    } else if owner != user {
        format!(
            "belongs to user {owner}, and ordgate runs as user {user}; allowed are a directory and files of that user: chown -R {user} {shown}, or set another state.path"
        )
    } else if mode & 0o077 != 0 {
        format!(
            "has mode {mode:04o}; allowed is a mode that gives no access to group and others: chmod go= {shown}"
        )
    } else {
        return Ok(());
    };
    Err(StateError(format!("{shown} {why}")))
}

/// Why the state directory cannot be used, or a purge could not be made durable.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StateError(String);

/// The directory, or a file in it, cannot be read or written.
fn access(path: &Path, error: impl Display) -> StateError {
    StateError(format!(
        "{} cannot be used: {error}; allowed is a directory on a disk with free space, in which ordgate can read and write files",
        path.display()
    ))
}

/// The directory, or a file in it, is locked.
fn in_use(path: &Path) -> StateError {
    StateError(format!(
        "{} is in use by another process; allowed is one process for each directory: stop the other one, or set another state.path",
        path.display()
    ))
}

#[cfg(test)]
mod tests;
