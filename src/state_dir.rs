//! The state directory: what a restart must not forget, in files.
//!
//! [`StateDir::open`] creates the directory or checks it, and locks it, so that one
//! process at a time uses it. Its file `format` has the version of all that is in it,
//! and a random salt; names and digests in the directory are keyed with the salt, so
//! that nobody who reads it can test a guess of an API key.
//!
//! | file | what it has |
//! |---|---|
//! | `format` | version, salt |
//! | `lock` | nothing; the process that uses the directory holds a lock on it |
//! | `shared` | nothing; another process has spent beside the one with the lock, and its spending is not known |
//! | `spent` | what each API key has spent (`upstream::admission::spend_journal`) |
//! | `answers/` | stored responses, purges and known blocks (`disk`) |
//!
//! Invariants: a directory that others can write is refused, since its content
//! decides what clients are answered. Nothing in it contains an API key or a client
//! token.

mod error;
mod format;
mod refusal;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use aws_lc_rs::hmac;
pub use error::StateDirError;
use serde::Serialize;

use crate::units;

/// Where state is kept, and how much.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The directory; `None` where nothing is kept.
    pub path: Option<PathBuf>,
    /// The most bytes of all files in the directory.
    #[serde(serialize_with = "units::serialize_size")]
    pub max_bytes: u64,
    /// Responses that are fresh for a shorter time are not kept.
    #[serde(serialize_with = "units::serialize")]
    pub min_freshness: Duration,
}

/// The state directory of this process.
#[derive(Clone, Debug)]
pub enum OpenedState {
    /// None is configured.
    Off,
    /// Another process uses it, so this one runs without.
    InUse(Arc<Path>),
    /// This process uses it.
    Open(Arc<StateDir>),
}

impl OpenedState {
    /// Opens the configured directory, if there is one. Waits at most for `patience` for
    /// another process that uses it: it may be about to end. Logs what the operator
    /// should know.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(settings: &Settings, patience: Duration) -> Result<Self, StateDirError> {
        let Some(path) = &settings.path else {
            return Ok(Self::Off);
        };
        let Some(directory) = StateDir::open_within(path, patience, thread::sleep)? else {
            tracing::error!(
                path = %path.display(),
                "another process uses the state directory: this one keeps nothing on disk until it is restarted, and does not know what the other one spends, so it does not use API keys with a limit a minute for a minute. Stop the other process, or give each a directory of its own"
            );
            if let Err(error) = File::create(path.join(SHARED)) {
                tracing::error!(%error, "the next process cannot be told what this one spends");
            }
            return Ok(Self::InUse(path.as_path().into()));
        };
        if directory.boot_id.is_none() {
            tracing::warn!(
                file = BOOT_ID,
                "the boot id cannot be read: after each start, API keys are not used until what was spent before counts no more, a minute"
            );
        }
        Ok(Self::Open(Arc::new(directory)))
    }

    /// The directory, if this process uses one.
    pub fn directory(&self) -> Option<&Arc<StateDir>> {
        match self {
            Self::Open(directory) => Some(directory),
            Self::Off | Self::InUse(_) => None,
        }
    }

    /// Its path, if one is configured.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Open(directory) => Some(&directory.path),
            Self::InUse(path) => Some(path),
            Self::Off => None,
        }
    }

    /// The names of the states, as `/status` and metrics have them.
    pub const NAMES: [&str; 3] = ["off", "in use by another process", "open"];

    /// One of [`NAMES`](Self::NAMES).
    pub fn name(&self) -> &'static str {
        let [off, in_use, open] = Self::NAMES;
        match self {
            Self::Off => off,
            Self::InUse(_) => in_use,
            Self::Open(_) => open,
        }
    }
}

/// The name of the journal of what was spent.
pub(crate) const SPENT: &str = "spent";

/// Identifies the time since the machine was started.
pub type BootId = [u8; 16];

/// A state directory that this process uses. The lock on it ends with the process, or
/// when this is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    lock: File,
    salt: [u8; 16],
    boot_id: Option<BootId>,
    was_used: bool,
    was_shared: bool,
}

/// The file that is locked.
const LOCK: &str = "lock";
/// The file of a process that spends without the lock.
const SHARED: &str = "shared";
/// How long another process is waited for, and how often it is looked whether it has ended.
const MOST_PATIENCE: Duration = Duration::from_secs(5);
const ATTEMPT_EVERY: Duration = Duration::from_millis(50);
/// Only the user of the process has access to what it creates.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The system's file with the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

impl StateDir {
    /// Opens a directory, which is created if it does not exist. `None` where another
    /// process uses it.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(path: &Path) -> Result<Option<Self>, StateDirError> {
        let created = DirBuilder::new().mode(DIRECTORY_MODE).create(path);
        if let Err(error) = created
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(StateDirError::Create {
                path: path.into(),
                error,
            });
        }
        refusal::check(path)?;
        let failed = |error| StateDirError::access(path, error);
        let mut lock = OpenOptions::new();
        let lock = lock
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(path.join(LOCK));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Only the process with the lock may look at the rest.
        let (format, was_used) = match format::read(path)? {
            Some(known) => (known, true),
            None => (format::create(path).map_err(failed)?, false),
        };
        Ok(Some(Self {
            path: path.into(),
            lock,
            salt: format.salt,
            boot_id: boot_id(),
            was_used,
            was_shared: fs::exists(path.join(SHARED)).map_err(failed)?,
        }))
    }

    /// The same, after a wait for another process that uses it, if it ends in time.
    fn open_within(
        path: &Path,
        patience: Duration,
        mut wait: impl FnMut(Duration),
    ) -> Result<Option<Self>, StateDirError> {
        let mut left = patience.min(MOST_PATIENCE);
        loop {
            let opened = Self::open(path)?;
            if opened.is_some() || left.is_zero() {
                return Ok(opened);
            }
            wait(ATTEMPT_EVERY);
            left = left.saturating_sub(ATTEMPT_EVERY);
        }
    }

    /// Whether [`open`](Self::open) would refuse a directory. Nothing is created.
    ///
    /// # Errors
    /// Why it would.
    pub fn check(path: &Path) -> Result<(), StateDirError> {
        match fs::metadata(path) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                refusal::check_creatable(path)
            }
            Err(_) | Ok(_) => refusal::check(path),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The id of the machine's present boot; `None` where it cannot be read. Another one
    /// in a file says that the machine has been restarted since.
    pub fn boot_id(&self) -> Option<&BootId> {
        self.boot_id.as_ref()
    }

    /// Whether a process has used the directory before.
    pub fn was_used(&self) -> bool {
        self.was_used
    }

    /// Whether a process has spent beside the one that used the directory before, since
    /// [`forget_shared`](Self::forget_shared) was called.
    pub fn was_shared(&self) -> bool {
        self.was_shared
    }

    /// Forgets that, when it is known from elsewhere.
    ///
    /// # Errors
    /// Where the file system refuses.
    pub fn forget_shared(&self) -> io::Result<()> {
        match fs::remove_file(self.path.join(SHARED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The name of something in this directory, from which it cannot be guessed.
    pub fn digest(&self, of: &[&[u8]]) -> [u8; 16] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.salt);
        let mut digest = hmac::Context::with_key(&key);
        for part in of {
            digest.update(&(part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        let mut name = [0; 16];
        name.copy_from_slice(&digest.sign().as_ref()[..16]);
        name
    }

    /// Creates a directory in it, or returns the one that exists.
    ///
    /// # Errors
    /// Where the file system refuses.
    pub fn subdirectory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        match DirBuilder::new().mode(DIRECTORY_MODE).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(()) | Err(_) => Ok(path),
        }
    }

    /// Whether the directory was removed while it is in use.
    pub fn was_removed(&self) -> bool {
        let locked = self.lock.metadata();
        let named = fs::metadata(self.path.join(LOCK));
        match (locked, named) {
            (Ok(locked), Ok(named)) => (locked.dev(), locked.ino()) != (named.dev(), named.ino()),
            (_, Err(error)) => error.kind() == io::ErrorKind::NotFound,
            (Err(_), Ok(_)) => false,
        }
    }
}

/// The options with which a file of the directory is opened: only the user of the
/// process has access to what is created.
pub fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// The id of the machine's present boot.
fn boot_id() -> Option<BootId> {
    let text = fs::read_to_string(BOOT_ID).ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    format::parse_id(&digits)
}

#[cfg(test)]
mod tests;
