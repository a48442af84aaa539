//! Reads the operator's files: the configuration, secrets, certificates, authorities.
//!
//! A reload reads them again, so they must be regular files: a pipe has no content the
//! second time, and opening a named pipe would wait for a writer, for ever if there is
//! none. The kind is checked on the open file, so that it cannot change before the file is
//! read.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::units;

/// The most bytes of a file of certificate authorities: some ten times those of browsers.
pub(crate) const MAX_AUTHORITIES: u64 = 4 << 20;

/// There is room for so many bytes of a file, whatever its size is said to be: some file systems
/// say that a file has none.
const MIN_ROOM: u64 = 64 << 10;

/// Reads a regular file of at most `most` bytes. It does not wait, whatever is there,
/// unless the file system itself does.
///
/// # Errors
/// Where the system refuses, or there is something else, or it is larger.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_into(path, most, &mut bytes)?;
    Ok(bytes)
}

/// Reads a file as [`read`] does, into a buffer that does not grow, since growing leaves copies.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_into(path: &Path, most: u64, bytes: &mut Vec<u8>) -> io::Result<Metadata> {
    // Opening a pipe without a writer would wait for one.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path);
    let found = match &opened {
        Ok(file) => file.metadata()?,
        // A socket cannot be opened; the system's message does not say what it is.
        Err(_) => std::fs::metadata(path)?,
    };
    let kind = found.file_type();
    if !kind.is_file() {
        let others = [
            (kind.is_dir(), "a directory"),
            (kind.is_fifo(), "a pipe"),
            (kind.is_socket(), "a socket"),
        ];
        let other = others.into_iter().find(|(is_kind, _)| *is_kind);
        let other = other.map_or("a device", |(_, name)| name);
        return Err(io::Error::other(format!(
            "it is {other}; allowed is a regular file, which a reload can read again: write the content to a file and name that one"
        )));
    }
    let room = found.len().max(MIN_ROOM).min(most);
    bytes.reserve_exact(room as usize + 1);
    opened?.take(room + 1).read_to_end(bytes)?;
    if bytes.len() as u64 > room {
        let room = units::format_size(room);
        let why = format!("it has more than {room}, the most that is read of it");
        return Err(io::Error::other(why));
    }
    Ok(found)
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
        assert_eq!(read(&path("link"), 1 << 20).unwrap(), b"12345");
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
