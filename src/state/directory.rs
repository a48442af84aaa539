//! The directory: who may have access to it, and the lock on it.
//!
//! What it contains decides what clients are answered and how much may be spent. So
//! the directory and all files in it must belong to the user of the process, and nobody
//! else may have access.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::geteuid;

use super::StateError;

/// The lock on the directory, until the last copy is dropped.
pub(super) type Lock = Arc<File>;

/// How often a lock is tried that another process holds.
const ATTEMPT_EVERY: Duration = Duration::from_millis(50);

/// Creates or checks the directory, and locks it. Another process that has the lock is
/// waited for as long as `patience`.
pub(super) fn open(path: &Path, patience: Duration) -> Result<Lock, StateError> {
    let created = DirBuilder::new().mode(0o700).create(path);
    if let Err(error) = created
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        let path = path.into();
        return Err(StateError::Create { path, error });
    }
    let failed = |error| access(path, error);
    let user = geteuid().as_raw();
    check(path, &fs::metadata(path).map_err(failed)?, true, user)?;
    for entry in fs::read_dir(path).map_err(failed)? {
        let found = entry.map_err(failed)?.path();
        match fs::symlink_metadata(&found) {
            Ok(metadata) if is_ours(&found) => check(&found, &metadata, false, user)?,
            Ok(_) => {}
            // The process that is about to end has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(access(&found, error)),
        }
    }
    lock(path.join("lock"), patience)
}

/// Whether a file has a name that ordgate gives.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name == b"lock" || name.starts_with(b"answers.db") || name.starts_with(b"spent.db")
}

/// Refuses what is of another kind than it should be, or not only this user's.
pub(super) fn check(
    path: &Path,
    found: &Metadata,
    is_directory: bool,
    user: u32,
) -> Result<(), StateError> {
    let (is_right, allowed) = if is_directory {
        (found.is_dir(), "a directory, which need not exist")
    } else {
        (found.is_file(), "a file")
    };
    let path = PathBuf::from(path);
    if !is_right {
        let what = if found.is_dir() {
            "a directory"
        } else if found.is_symlink() {
            "a symbolic link"
        } else if found.is_file() {
            "a file"
        } else {
            "a socket, a pipe or a device"
        };
        return Err(StateError::Kind {
            path,
            what,
            allowed,
        });
    }
    if found.uid() != user {
        let owner = found.uid();
        return Err(StateError::Owner { path, owner, user });
    }
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(StateError::TooOpen { path, mode });
    }
    Ok(())
}

fn lock(path: PathBuf, patience: Duration) -> Result<Lock, StateError> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path).map_err(|error| access(&path, error))?;
    let mut left = patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Arc::new(file)),
            Err(TryLockError::Error(error)) => return Err(access(&path, error)),
            Err(TryLockError::WouldBlock) if left.is_zero() => {
                return Err(StateError::InUse { path });
            }
            Err(TryLockError::WouldBlock) => {
                thread::sleep(ATTEMPT_EVERY.min(left));
                left = left.saturating_sub(ATTEMPT_EVERY);
            }
        }
    }
}

/// The directory, or a file in it, cannot be read or written.
pub(super) fn access(path: &Path, error: impl ToString) -> StateError {
    StateError::Access {
        path: path.into(),
        error: error.to_string(),
    }
}
