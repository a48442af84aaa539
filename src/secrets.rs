//! Secrets as they come in: from a variable of the environment, or from a file
//! that is for its owner's eyes.
//!
//! Invariants: no error shows what was read; what was read is in buffers that do
//! not grow, since what grows leaves copies behind, and that are zeroed when they
//! are let go of. A file's mode is that of what is then read: it is asked of the
//! open file.
//!
//! What is beyond our reach: the environment that the process was started with
//! stays in its memory, and in `/proc`, as long as it lives. A secret that is to
//! go belongs in a file.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// A text that is zeroed when it is let go of.
pub type Secret = Zeroizing<String>;

/// Why a secret cannot be had. Says where it is, never what.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It is no text.
    #[error("{0} is not UTF-8; visible ASCII is allowed")]
    NotText(String),
    /// The system does not let it be read.
    #[error("cannot read {name}: {error}")]
    Unreadable {
        /// Which file, and what for.
        name: String,
        /// Why not.
        error: io::Error,
    },
    /// It is something that cannot be read again and again.
    #[error("cannot read {name}: it is {what}; allowed is a regular file")]
    NotRegularFile {
        /// Which file, and what for.
        name: String,
        /// What it is.
        what: &'static str,
    },
    /// Somebody else can read or change it.
    #[error(
        "{name} has mode {mode:04o}, and so {who}; allowed is 0600, 0400, 0640 or 0440 (nothing for others, no writing for the group): chmod 600 {path}"
    )]
    TooOpen {
        /// Which file, and what for.
        name: String,
        /// Its permissions.
        mode: u32,
        /// Who has more than they may.
        who: &'static str,
        /// The file alone.
        path: String,
    },
    /// It is no list of secrets.
    #[error("{0} has more than 64 KiB, the most that is read of secrets")]
    TooLarge(String),
}

/// The most that is read.
const MOST: usize = 64 << 10;

/// A variable of the environment that holds a secret.
///
/// # Errors
/// Where it is not text.
pub fn variable(name: &str) -> Result<Option<Secret>, SecretError> {
    let Some(value) = std::env::var_os(name) else {
        return Ok(None);
    };
    match value.into_string() {
        Ok(text) => Ok(Some(Secret::new(text))),
        Err(secret) => {
            drop(Zeroizing::new(secret.into_encoded_bytes()));
            Err(SecretError::NotText(name.to_owned()))
        }
    }
}

/// The names of the variables of the environment that begin with a text and hold
/// something.
pub fn variables_with_prefix(begin: &str) -> Vec<String> {
    let mut names = Vec::new();
    // Each value is looked at, so that none is left behind.
    for (name, value) in std::env::vars_os() {
        let value = Zeroizing::new(value.into_encoded_bytes());
        let is_empty = value.trim_ascii().is_empty();
        if let Some(name) = name.to_str().filter(|name| name.starts_with(begin))
            && !is_empty
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    names
}

/// Reads a file of secrets, which `what` of the configuration names. Some editors
/// begin a file with a byte order mark, which is no part of what is in it.
///
/// # Errors
/// Where it cannot be read, or by more than its owner and, to read, its group.
pub fn file(what: &str, path: &Path) -> Result<Secret, SecretError> {
    let name = format!("{what} {}", path.display());
    let unreadable = |error| SecretError::Unreadable {
        name: name.clone(),
        error,
    };
    // A pipe that nobody writes to would keep us waiting.
    let waits_for_nobody = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(waits_for_nobody)
        .open(path)
        .map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        let what = match found.is_dir() {
            true => "a directory",
            false => "a device, a pipe or a socket",
        };
        return Err(SecretError::NotRegularFile { name, what });
    }
    let mode = found.permissions().mode() & 0o7777;
    if let Some(who) = too_open(mode) {
        let path = path.display().to_string();
        return Err(SecretError::TooOpen {
            name,
            mode,
            who,
            path,
        });
    }
    // One byte more than may be, to see that it is there.
    let mut room = Zeroizing::new(vec![0; MOST + 1]);
    let mut length = 0;
    while length < room.len() {
        match file.read(&mut room[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    if length > MOST {
        return Err(SecretError::TooLarge(name));
    }
    match std::str::from_utf8(&room[..length]) {
        Ok(text) => Ok(Secret::new(text.trim_start_matches('\u{feff}').to_owned())),
        Err(_where) => Err(SecretError::NotText(name)),
    }
}

/// Who can do more with a file of this mode than they may, where somebody can.
fn too_open(mode: u32) -> Option<&'static str> {
    let can = |bits: u32| mode & bits != 0;
    if can(0o007) {
        Some("others have access to it")
    } else if can(0o020) {
        Some("its group can change it")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;

    use super::*;

    fn written(text: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        let mode = Permissions::from_mode(mode);
        std::fs::set_permissions(file.path(), mode).unwrap();
        file
    }

    #[test]
    fn a_file_is_for_its_owner_and_for_its_group_to_read() {
        for (mode, allowed) in [
            (0o600, true),
            (0o400, true),
            (0o640, true),
            (0o440, true),
            (0o700, true),
            (0o644, false),
            (0o604, false),
            (0o602, false),
            (0o601, false),
            (0o660, false),
            (0o620, false),
            (0o666, false),
            (0o4644, false),
        ] {
            let held = written(b"s3cret\n", mode);
            let path = held.path().display().to_string();
            match file("a.key", held.path()) {
                Ok(text) => assert!(allowed && *text == "s3cret\n", "{mode:o}"),
                Err(error) => {
                    assert!(!allowed, "{mode:o}: {error}");
                    let said = error.to_string();
                    let expected = format!("a.key {path} has mode {mode:04o}, and so ");
                    assert!(said.starts_with(&expected), "{said}");
                    assert!(said.ends_with(&format!(": chmod 600 {path}")), "{said}");
                    assert!(said.contains("allowed is 0600, 0400, 0640 or 0440"));
                    assert!(!said.contains("s3cret"));
                }
            }
        }
    }

    #[test]
    fn a_link_has_the_mode_of_what_it_leads_to() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("key");
        for (mode, allowed) in [(0o600, true), (0o644, false)] {
            let held = written(b"s3cret\n", mode);
            std::os::unix::fs::symlink(held.path(), &link).unwrap();
            assert_eq!(file("a.key", &link).is_ok(), allowed, "{mode:o}");
            std::fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn what_is_no_file_of_secrets_is_told() {
        let said = |path: &Path| file("a.key", path).unwrap_err().to_string();
        let directory = tempfile::tempdir().unwrap();
        let text = said(directory.path());
        assert!(
            text.contains("a directory; allowed is a regular file"),
            "{text}"
        );
        let text = said(Path::new("/dev/null"));
        assert!(text.contains("a device, a pipe"), "{text}");
        let pipe = directory.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        let text = said(&pipe);
        assert!(text.contains("a device, a pipe"), "{text}");
        let text = said(&directory.path().join("none"));
        assert!(text.starts_with("cannot read a.key /"), "{text}");
        let text = said(written(b"n\xff", 0o600).path());
        assert!(text.ends_with("is not UTF-8; visible ASCII is allowed"));
    }

    #[test]
    fn its_size_has_a_bound() {
        let most = written(&vec![b'a'; MOST], 0o600);
        assert_eq!(file("a.key", most.path()).unwrap().len(), MOST);
        let more = written(&vec![b'a'; MOST + 1], 0o600);
        let text = file("a.key", more.path()).unwrap_err().to_string();
        assert!(text.contains("more than 64 KiB"), "{text}");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_secret() {
        let held = written("\u{feff}s3cret".as_bytes(), 0o400);
        assert_eq!(*file("a.key", held.path()).unwrap(), "s3cret");
    }
}
