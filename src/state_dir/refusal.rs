//! The rules by which a directory is refused.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use super::{LOCK, StateDirError, format, signs};

/// What a new directory may have: what a start that was interrupted leaves, and what
/// a new file system has.
const IGNORED: [&str; 3] = [LOCK, format::NEW, "lost+found"];

/// Refuses an existing directory that must not, or cannot, be used.
///
/// # Errors
/// Why.
pub(super) fn check(path: &Path) -> Result<(), StateDirError> {
    let failed = |what, error| StateDirError::Access {
        path: path.into(),
        what,
        error,
    };
    let found = fs::metadata(path).map_err(|error| failed("read", error))?;
    check_metadata(path, &found, geteuid().as_raw())?;
    let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    access(path, all).map_err(|error| failed("written", error.into()))?;
    if fs::exists(path.join(format::FILE)).map_err(|error| failed("read", error))? {
        return Ok(());
    }
    // A lost format is like a damaged one.
    if signs::are_in(path).map_err(|error| failed("read", error))? {
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(|error| failed("read", error))? {
        let name = entry.map_err(|error| failed("read", error))?.file_name();
        if !IGNORED.iter().any(|ignored| *name == *OsStr::new(ignored)) {
            return Err(StateDirError::Foreign {
                path: path.into(),
                found: name.to_string_lossy().into(),
            });
        }
    }
    Ok(())
}

/// Refuses what is no directory, or not only this user's.
fn check_metadata(path: &Path, found: &Metadata, user: u32) -> Result<(), StateDirError> {
    let kind = found.file_type();
    if !kind.is_dir() {
        let what = if kind.is_file() {
            "a file"
        } else if kind.is_socket() || kind.is_fifo() {
            "a socket or a pipe"
        } else {
            "a device"
        };
        let path = path.into();
        return Err(StateDirError::NotDirectory { path, what });
    }
    if found.uid() != user {
        return Err(StateDirError::Owner {
            path: path.into(),
            owner: found.uid(),
            user,
        });
    }
    let mode = found.permissions().mode() & 0o7777;
    let who = match (mode & 0o002 != 0, mode & 0o020 != 0) {
        (true, _) => "everyone can write to it",
        (false, true) => "its group can write to it",
        (false, false) => return Ok(()),
    };
    Err(StateDirError::TooOpen {
        path: path.into(),
        mode,
        who,
    })
}

/// Refuses a directory that does not exist and cannot be created.
///
/// # Errors
/// Why it cannot.
pub(super) fn check_creatable(path: &Path) -> Result<(), StateDirError> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let checked = fs::metadata(parent).and_then(|found| match found.is_dir() {
        true => Ok(access(parent, Access::WRITE_OK | Access::EXEC_OK)?),
        false => Err(rustix::io::Errno::NOTDIR.into()),
    });
    checked.map_err(|error| StateDirError::Create {
        path: path.into(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let found = fs::metadata(path).unwrap();
        let user = found.uid();
        assert!(check_metadata(path, &found, user).is_ok());
        let refused = check_metadata(path, &found, user + 1).unwrap_err();
        let name = path.display();
        assert_eq!(
            refused.to_string(),
            format!(
                "state.path {name}: it belongs to user {user}, and ordgate runs as user {other}; allowed is a directory of that user: chown -R {other} {name}, or name another directory",
                other = user + 1
            )
        );
    }
}
