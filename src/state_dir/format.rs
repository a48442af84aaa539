//! The file `format`: the version of the directory, and its salt.
//!
//! ```text
//! ordgate state 1
//! salt 3f…
//! check 9a…
//! ```
//!
//! The last line is a digest of the others. A damaged file is written anew, with
//! another salt, and so is one that is missing although others of ordgate's are there. The
//! journal of what was spent is deleted then: its pages have names under
//! the lost salt, so it would seem whole, and to know nothing of any key. Stored answers
//! have names without a salt and are still served. What another version has written is
//! deleted: it cannot be read, and would take room that nothing accounts for.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use super::{SPENT, StateDirError, file_options, signs};
use crate::regular_file::{self, FileError};

/// The version of everything in the directory.
pub(super) const VERSION: u32 = 1;
/// The file's name.
pub(super) const FILE: &str = "format";
/// Its name while it is written.
pub(super) const NEW: &str = "format.new";
/// At most this many bytes are read.
const MAX_BYTES: u64 = 4096;

/// What the file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FormatFile {
    pub(super) salt: [u8; 16],
}

/// Why a text is no format of this version.
#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    Version(u32),
    Damaged,
    /// It is missing, although the directory was used.
    Missing,
}

/// Reads the format of a directory; `None` if it has none yet. A damaged or lost one is
/// written anew, and so is one of another version, whose files are deleted.
///
/// # Errors
/// Where the file system refuses.
pub(super) fn read(directory: &Path) -> Result<Option<FormatFile>, StateDirError> {
    match known(directory)? {
        None => Ok(None),
        Some(Ok(salt)) => Ok(Some(FormatFile { salt })),
        Some(Err(unreadable)) => {
            let file = directory.join(FILE);
            match unreadable {
                Unreadable::Version(found) => tracing::error!(
                    file = %file.display(),
                    "the state directory was written by another version of ordgate, whose files have version {found} and not {VERSION}: they are deleted, API keys are not used until what was spent before counts no more, a minute, and stored answers are fetched again"
                ),
                Unreadable::Damaged => tracing::error!(
                    file = %file.display(),
                    "the state directory's format file is damaged and was written anew: API keys are not used until what was spent before counts no more, a minute"
                ),
                Unreadable::Missing => tracing::error!(
                    file = %file.display(),
                    "the state directory's format file is missing, although other files of ordgate's are there, and was written anew: API keys are not used until what was spent before counts no more, a minute"
                ),
            }
            let emptied = match unreadable {
                Unreadable::Version(_) => empty(directory),
                Unreadable::Damaged | Unreadable::Missing => forget_spent(directory),
            };
            let created = emptied.and_then(|()| create(directory));
            created
                .map(Some)
                .map_err(|error| StateDirError::access(directory, error))
        }
    }
}

/// Deletes all but the locked file. What says that the directory is ordgate's goes last,
/// so that a process which is killed meanwhile is followed by one that goes on.
fn empty(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == FILE || name == super::LOCK {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Deletes the journal of what was spent, whose pages have names under the lost salt.
/// Where there is none although the directory was used, the spending is unknown.
fn forget_spent(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(SPENT)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn known(directory: &Path) -> Result<Option<Result<[u8; 16], Unreadable>>, StateDirError> {
    let failed = |error| StateDirError::Access {
        path: directory.into(),
        what: "read",
        error,
    };
    match regular_file::read(&directory.join(FILE), MAX_BYTES) {
        Ok(bytes) => Ok(Some(parse(&bytes))),
        Err(FileError::TooLarge(_)) => Ok(Some(Err(Unreadable::Damaged))),
        Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            let was_used = signs::are_in(directory).map_err(failed)?;
            Ok(was_used.then_some(Err(Unreadable::Missing)))
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// Writes the format of a new directory, durably: with a salt that is lost, all else
/// would be.
///
/// # Errors
/// Where the file system refuses, or there is no randomness.
pub(super) fn create(directory: &Path) -> io::Result<FormatFile> {
    let mut salt = [0; 16];
    SystemRandom::new()
        .fill(&mut salt)
        .map_err(|_unspecified| io::Error::other("the system has no randomness"))?;
    let new = directory.join(NEW);
    let mut options = file_options();
    let mut file = options.write(true).create(true).truncate(true).open(&new)?;
    file.write_all(text(&salt).as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, directory.join(FILE))?;
    File::open(directory)?.sync_all()?;
    Ok(FormatFile { salt })
}

fn text(salt: &[u8; 16]) -> String {
    let body = format!(
        "ordgate state {VERSION}\nsalt {:032x}\n",
        u128::from_be_bytes(*salt)
    );
    format!("{body}check {}\n", check_of(&body))
}

fn check_of(body: &str) -> String {
    let digest = digest(&SHA256, body.as_bytes());
    let first = digest.as_ref().iter().take(8);
    first.map(|byte| format!("{byte:02x}")).collect()
}

fn parse(bytes: &[u8]) -> Result<[u8; 16], Unreadable> {
    let text = std::str::from_utf8(bytes).map_err(|_where| Unreadable::Damaged)?;
    let parts = text.rsplit_once("check ");
    let parts = parts.filter(|(body, check)| check.trim_end() == check_of(body));
    let (body, _check) = parts.ok_or(Unreadable::Damaged)?;
    let mut lines = body.lines();
    let version = lines
        .next()
        .and_then(|line| line.strip_prefix("ordgate state "));
    match version.and_then(|version| version.parse().ok()) {
        Some(VERSION) => {}
        Some(other) => return Err(Unreadable::Version(other)),
        None => return Err(Unreadable::Damaged),
    }
    let salt = lines.find_map(|line| line.strip_prefix("salt "));
    salt.and_then(parse_id).ok_or(Unreadable::Damaged)
}

/// Sixteen bytes of 32 hexadecimal digits.
pub(super) fn parse_id(digits: &str) -> Option<[u8; 16]> {
    let is_id = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = is_id.then(|| u128::from_str_radix(digits, 16).ok());
    Some(number??.to_be_bytes())
}

/// A valid format of another version.
#[cfg(test)]
pub(super) fn of_version(version: u32) -> String {
    let body = format!("ordgate state {version}\nwhatever\n");
    format!("{body}check {}\n", check_of(&body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_read_as_written() {
        let salt = *b"\x00\x01a salt of 16 b";
        assert_eq!(parse(text(&salt).as_bytes()), Ok(salt));
    }

    #[test]
    fn any_changed_byte_is_damage_and_no_other_version() {
        let whole = text(&[7; 16]);
        for at in 0..whole.len() - 1 {
            for bit in 0..8 {
                let mut bytes = whole.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                assert_eq!(parse(&bytes), Err(Unreadable::Damaged), "{at} {bit}");
            }
        }
        for length in 0..whole.len() - 1 {
            let torn = &whole.as_bytes()[..length];
            assert_eq!(parse(torn), Err(Unreadable::Damaged), "{length}");
        }
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let other = parse(of_version(7).as_bytes());
        assert_eq!(other, Err(Unreadable::Version(7)));
    }

    #[test]
    fn an_id_has_32_digits() {
        assert_eq!(parse_id(&"0f".repeat(16)), Some([15; 16]));
        for bad in [
            "",
            "0f",
            &"0f".repeat(17),
            &"0g".repeat(16),
            &"+f".repeat(16),
        ] {
            assert_eq!(parse_id(bad), None, "{bad}");
        }
    }
}
