//! What shows that a directory without the file `format` is ordgate's: the beginnings of
//! its other files, which no other program writes.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use super::SPENT;
use crate::regular_file::{self, FileError};

/// The directory of stored responses.
pub(crate) const ANSWERS: &str = "answers";
/// The name of the file that says what has been applied of the journal of replicas.
pub(crate) const JOURNAL: &str = "journal";

/// The directory in it of the files with their bodies.
pub(crate) const RESPONSES: &str = "responses";

/// What the files begin with, some of them after a length and a checksum: the journal of
/// what was spent, that of replicas, segments, records of purges, and known blocks. The
/// version follows.
const MARKS: [&str; 5] = [
    "ordspn",
    "ordgate-journal-",
    "ordgseg\n",
    "ordgate-purges-",
    "ordgate-blocks-",
];
/// The most bytes of a file that are read.
const MOST: u64 = 64;
/// The most files of a directory that are looked at: few are damaged.
const MOST_FILES: usize = 1000;

/// Whether a directory has any of them.
///
/// # Errors
/// Where the file system refuses.
pub(super) fn are_in(directory: &Path) -> io::Result<bool> {
    let answers = directory.join(ANSWERS);
    Ok(is_marked(&directory.join(SPENT))?
        || is_marked(&directory.join(JOURNAL))?
        || has_marked(&answers.join(RESPONSES))?
        || has_marked(&answers)?)
}

/// Whether one of the first files in a directory is ordgate's.
fn has_marked(directory: &Path) -> io::Result<bool> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return absent(error).map(|()| false),
    };
    for entry in entries.take(MOST_FILES) {
        if is_marked(&entry?.path())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a file is ordgate's.
fn is_marked(path: &Path) -> io::Result<bool> {
    let begin = begin(path)?;
    let has = |mark: &str| {
        begin
            .windows(mark.len())
            .any(|part| part == mark.as_bytes())
    };
    Ok(MARKS.into_iter().any(has))
}

/// The beginning of a file; nothing of what is absent or no regular file.
fn begin(path: &Path) -> io::Result<Vec<u8>> {
    let mut begin = Vec::new();
    match regular_file::open(path) {
        Ok((file, _)) => {
            file.take(MOST).read_to_end(&mut begin)?;
        }
        Err(FileError::Io(error)) => absent(error)?,
        Err(_) => {}
    }
    Ok(begin)
}

/// No error if something is not there, or is not what it was taken for.
fn absent(error: io::Error) -> io::Result<()> {
    let kind = error.kind();
    match kind == io::ErrorKind::NotFound || kind == io::ErrorKind::NotADirectory {
        true => Ok(()),
        false => Err(error),
    }
}
