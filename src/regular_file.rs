//! Reads the operator's files: the configuration, secrets, certificates, authorities.
//!
//! A reload reads them again, so they must be regular files: a pipe has no content the
//! second time, and opening a named pipe would wait for a writer, for ever if there is
//! none. The kind is checked on the open file, so that it cannot change before the file is
//! read.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The most bytes of a file of certificate authorities: some ten times those of browsers.
pub(crate) const MAX_AUTHORITIES: u64 = 4 << 20;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not a regular file.
    #[error(
        "it is {0}; allowed is a regular file, which a reload can read again: write the content to a file and name that one"
    )]
    NotRegular(&'static str),
    /// It is too large.
    #[error("it has more than {}, the most that is read of it", crate::units::format_size(*.0))]
    TooLarge(u64),
}

/// Opens a regular file for reading. It does not wait, whatever is there.
///
/// # Errors
/// Where the system refuses, or there is something else.
pub fn open(path: &Path) -> Result<(File, Metadata), FileError> {
    // Opening a pipe without a writer would wait for one.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path);
    let file = match opened {
        // A socket cannot be opened; the system's message does not say what it is.
        Err(error) => match std::fs::metadata(path) {
            Ok(found) if !found.is_file() => return Err(not_regular(&found)),
            Ok(_) | Err(_) => return Err(error.into()),
        },
        Ok(file) => file,
    };
    let found = file.metadata()?;
    match found.is_file() {
        true => Ok((file, found)),
        false => Err(not_regular(&found)),
    }
}

/// Reads a regular file of at most `most` bytes. It does not wait, whatever is there,
/// unless the file system itself does.
///
/// # Errors
/// As [`open`], and where it is larger.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(FileError::TooLarge(most)),
        false => Ok(bytes),
    }
}

fn not_regular(found: &Metadata) -> FileError {
    let kind = found.file_type();
    FileError::NotRegular(if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_read_and_nothing_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "12345").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), mode).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        assert_eq!(read(&path("file"), 5).unwrap(), b"12345");
        assert_eq!(read(&path("link"), u64::MAX).unwrap(), b"12345");
        for (name, most, expected) in [
            (
                "file",
                4,
                "it has more than 4B, the most that is read of it",
            ),
            ("pipe", 9, "it is a pipe; allowed is a regular file"),
            ("socket", 9, "it is a socket; allowed is a regular file"),
            ("", 9, "it is a directory; allowed is a regular file"),
            ("/dev/null", 9, "it is a device; allowed is a regular file"),
            ("none", 9, "No such file or directory"),
        ] {
            let refused = read(&path(name), most).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{name}: {refused}");
        }
    }
}
