//! Why a state directory cannot be used: what is wrong, what is allowed, and what to
//! do.

use std::io;
use std::path::{Path, PathBuf};

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// It cannot be created.
    #[error(
        "state.path {}: the directory cannot be created: {error}; allowed is a directory that exists, or a new one in a directory that does: {}",
        path.display(), advice_create(path, error)
    )]
    Create {
        /// Its path.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There is something else of that name.
    #[error("state.path {}: it is {what}; allowed is a directory, which need not exist", path.display())]
    NotDirectory {
        /// Its path.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// It belongs to another user.
    #[error(
        "state.path {}: it belongs to user {owner}, and ordgate runs as user {user}; allowed is a directory of that user: chown -R {user} {}, or name another directory",
        path.display(), path.display()
    )]
    Owner {
        /// Its path.
        path: PathBuf,
        /// The id of the user that it belongs to.
        owner: u32,
        /// The id of the user of this process.
        user: u32,
    },
    /// Other users can write it.
    #[error(
        "state.path {}: it has mode {mode:04o}, and so {who}; allowed are modes that let nobody but its owner write, such as 0700: chmod 700 {}",
        path.display(), path.display()
    )]
    TooOpen {
        /// Its path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Who has too much access.
        who: &'static str,
    },
    /// It cannot be read or written.
    #[error(
        "state.path {}: it cannot be {what}: {error}; allowed is a directory in which ordgate can create files{}",
        path.display(), advice_access(error)
    )]
    Access {
        /// Its path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// It has files of another program.
    #[error(
        "state.path {}: it has {found:?} and no file of ordgate's; allowed is an empty directory, a new one, or one that ordgate has used: name another directory, such as {}",
        path.display(), path.join("ordgate").display()
    )]
    Foreign {
        /// Its path.
        path: PathBuf,
        /// One of the files.
        found: String,
    },
    /// Another version of ordgate has written it.
    #[error(
        "state.path {}: its files have version {found}, and this ordgate reads and writes version {}; name another directory, or delete this one (rm -r {}) while no ordgate uses it, a minute before the start",
        path.display(), super::format::VERSION, path.display()
    )]
    Version {
        /// Its path.
        path: PathBuf,
        /// The version that came.
        found: u32,
    },
}

impl StateDirError {
    /// A file in the directory could not be written or created.
    pub(super) fn access(path: &Path, error: io::Error) -> Self {
        Self::Access {
            path: path.into(),
            what: "written",
            error,
        }
    }
}

/// What to do about an error of creating a directory.
fn advice_create(path: &Path, error: &io::Error) -> String {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).display();
    let kind = error.kind();
    if kind == io::ErrorKind::NotFound {
        format!("create {parent} first")
    } else if kind == io::ErrorKind::NotADirectory {
        format!("{parent} is no directory")
    } else if kind == io::ErrorKind::ReadOnlyFilesystem {
        "its file system is mounted read-only; name a directory on another one".to_owned()
    } else {
        format!("let ordgate's user write to {parent}, or create the directory for it")
    }
}

/// What to do about an error of writing to a directory.
fn advice_access(error: &io::Error) -> &'static str {
    let kind = error.kind();
    if kind == io::ErrorKind::ReadOnlyFilesystem {
        ": its file system is mounted read-only; mount it writable, or name a directory on another one"
    } else if kind == io::ErrorKind::PermissionDenied {
        ": let ordgate's user read, write and search it (chmod 700)"
    } else if kind == io::ErrorKind::StorageFull || kind == io::ErrorKind::QuotaExceeded {
        ": its file system is full; free some space, or name a directory on another one"
    } else {
        ""
    }
}
