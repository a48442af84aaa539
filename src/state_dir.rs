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
//! | `shared` | the names of processes that have spent beside the one with the lock, whose spending is not known |
//! | `purged` | nothing; such a process has purged, and `answers/` does not have it |
//! | `spent` | what each API key has spent (`upstream::admission::spend_journal`) |
//! | `journal` | up to where the purges of other replicas were applied (`shared::journal`) |
//! | `answers/` | stored responses, purges and known blocks (`disk`) |
//!
//! Invariants: a directory that others can write is refused, since its content
//! decides what clients are answered. Nothing in it contains an API key or a client
//! token.

mod beside;
mod error;
mod format;
mod refusal;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use aws_lc_rs::hmac;
use beside::Beside;
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

/// The state directory of this process, if one is configured and once this process uses it.
#[derive(Clone, Debug, Default)]
pub struct OpenedState(Option<Arc<Configured>>);

#[derive(Debug)]
struct Configured {
    path: PathBuf,
    opened: OnceLock<Arc<StateDir>>,
    /// Where another process has used it at the start.
    beside: Option<Beside>,
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
            return Ok(Self::default());
        };
        let opened = StateDir::open_within(path, patience, thread::sleep)?;
        let mut beside = None;
        if let Some(directory) = &opened {
            directory.warn();
        } else {
            tracing::error!(
                path = %path.display(),
                "another process uses the state directory: this one keeps nothing on disk until that one has ended. It does not know what that one spends, so it does not use API keys with a limit a minute for a minute, unless that one ends before. Give each process a directory of its own if both are to stay"
            );
            let own = Beside::new(path).map_err(|error| StateDirError::access(path, error))?;
            if let Err(error) = own.mark_spending() {
                tracing::error!(%error, "the next process cannot be told what this one spends");
            }
            beside = Some(own);
        }
        Ok(Self(Some(Arc::new(Configured {
            path: path.clone(),
            opened: opened.map_or_else(OnceLock::new, |opened| Arc::new(opened).into()),
            beside,
        }))))
    }

    /// Opens the directory where another process has used it at the start, if that one has
    /// ended; [`set`](Self::set) must follow. `None` if that one still runs, or if nothing
    /// is to be opened. It waits for the disk.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn open_late(&self) -> Result<Option<Arc<StateDir>>, StateDirError> {
        let Some((configured, beside)) = self.missing() else {
            return Ok(None);
        };
        let path = &configured.path;
        let failed = |error| StateDirError::access(path, error);
        // Where someone has removed the directory, the other process may still run.
        if !fs::exists(path.join(LOCK)).map_err(failed)? {
            return Ok(None);
        }
        let opened = StateDir::open_beside(path, Some(beside))?;
        if opened.is_none() {
            beside.mark_spending().map_err(failed)?;
        }
        Ok(opened.map(Arc::new))
    }

    /// This process uses the directory from now on.
    pub(crate) fn set(&self, opened: Arc<StateDir>) {
        if let Some((configured, _)) = self.missing() {
            opened.warn();
            let _was_missing = configured.opened.set(opened);
        }
    }

    /// Whether another process has used it at the start, and no attempt to open it has
    /// succeeded since.
    pub(crate) fn is_missing(&self) -> bool {
        self.missing().is_some()
    }

    fn missing(&self) -> Option<(&Configured, &Beside)> {
        let configured = self.0.as_deref()?;
        let is_missing = configured.opened.get().is_none();
        Some((
            configured,
            configured.beside.as_ref().filter(|_| is_missing)?,
        ))
    }

    /// Says to those that use the directory next that what is stored in it may have been
    /// purged by this process, which does not use it.
    ///
    /// # Errors
    /// Where the file system refuses.
    pub(crate) fn mark_purged(&self) -> io::Result<()> {
        self.path().map_or(Ok(()), beside::mark_purged)
    }

    /// The directory, if this process uses one.
    pub fn directory(&self) -> Option<&Arc<StateDir>> {
        self.0.as_ref()?.opened.get()
    }

    /// Its path, if one is configured.
    pub fn path(&self) -> Option<&Path> {
        Some(&self.0.as_ref()?.path)
    }

    /// The names of the states, as `/status` and metrics have them.
    pub const NAMES: [&str; 3] = ["off", "in use by another process", "open"];

    /// One of [`NAMES`](Self::NAMES).
    pub fn name(&self) -> &'static str {
        let [off, in_use, open] = Self::NAMES;
        match (&self.0, self.directory()) {
            (None, _) => off,
            (Some(_), None) => in_use,
            (Some(_), Some(_)) => open,
        }
    }
}

/// The name of the journal of what was spent.
pub(crate) const SPENT: &str = "spent";

/// Identifies the time since the machine was started.
pub type BootId = [u8; 16];

/// Identifies a state directory while the machine runs: by the boot, and the device and the
/// number of the file that is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryId {
    /// The boot.
    pub boot: BootId,
    /// The device.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

/// A state directory that this process uses. The lock on it ends with the process, or
/// when this is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    lock: File,
    inode: (u64, u64),
    salt: [u8; 16],
    boot_id: Option<BootId>,
    was_used: bool,
    was_shared: bool,
    was_beside: bool,
}

/// The file that is locked.
const LOCK: &str = "lock";
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
        Self::open_beside(path, None)
    }

    /// The same for a process that has run beside another, if it has.
    fn open_beside(path: &Path, beside: Option<&Beside>) -> Result<Option<Self>, StateDirError> {
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
        let was_shared = match beside {
            // A new directory says nothing of what was spent beside this process.
            Some(own) => !was_used || own.have_others_spent().map_err(failed)?,
            None => fs::exists(path.join(beside::SHARED)).map_err(failed)?,
        };
        let metadata = lock.metadata().map_err(failed)?;
        Ok(Some(Self {
            path: path.into(),
            lock,
            inode: (metadata.dev(), metadata.ino()),
            salt: format.salt,
            boot_id: boot_id(),
            was_used,
            was_shared,
            was_beside: beside.is_some(),
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
        // Not through a symbolic link, which may lead nowhere.
        match fs::symlink_metadata(path) {
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

    /// Whether a process other than this one has spent beside the one that used the
    /// directory before, since [`forget_shared`](Self::forget_shared) was called.
    pub fn was_shared(&self) -> bool {
        self.was_shared
    }

    /// Whether this process has run beside the one that used the directory before.
    pub(crate) fn was_beside(&self) -> bool {
        self.was_beside
    }

    /// Forgets what was spent beside, when it is known from elsewhere.
    ///
    /// # Errors
    /// Where the file system refuses.
    pub fn forget_shared(&self) -> io::Result<()> {
        beside::forget_spending(&self.path)
    }

    /// Whether a process that has not used the directory has purged, since
    /// [`forget_purged`](Self::forget_purged) was called.
    pub(crate) fn was_purged(&self) -> io::Result<bool> {
        beside::has_purged(&self.path)
    }

    /// Forgets that, when what was stored is absent.
    pub(crate) fn forget_purged(&self) -> io::Result<()> {
        beside::forget_purged(&self.path)
    }

    /// Logs what the operator should know.
    fn warn(&self) {
        if self.boot_id.is_none() {
            tracing::warn!(
                file = BOOT_ID,
                "the boot id cannot be read: after each start, API keys are not used until what was spent before counts no more, a minute"
            );
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

    /// What no copy of it has; `None` if the boot is not known. A process that has had the
    /// directory with the same identity has ended, because this one has the lock.
    ///
    /// | what has happened | identity |
    /// |---|---|
    /// | the process was killed, or its container was replaced on this machine | the same |
    /// | the files of a backup were written back into the directory, the same boot | the same, or another one if the file `lock` was replaced |
    /// | a copy of the directory, also by a snapshot that is mounted beside it | another one: two file systems that are mounted have different devices |
    /// | a copy of the disk, or the disk itself, on another machine | another one: device and inode may be the same, the boot is not |
    /// | the machine was restarted | another one: nothing tells this from the row above |
    ///
    /// Not told apart: machines that go on from one snapshot of a running machine, with its
    /// memory. Their processes have the same random ids, too.
    pub fn identity(&self) -> Option<DirectoryId> {
        let (device, inode) = self.inode;
        Some(DirectoryId {
            boot: self.boot_id?,
            device,
            inode,
        })
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
