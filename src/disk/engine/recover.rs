//! Opening: which files are there, and what of them can be used.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::segment::{Segment, Unusable};
use super::write::{Place, Writer};
use super::{EngineError, Recovered, Segments};

/// How many segments without an index are read by their headers. There is one after a
/// kill; more are damaged, and reading them all would take too long.
const MOST_SCANS: u64 = 4;

/// A file, or a part of it, cannot be read.
pub(super) const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// How far the sequence numbers skip ahead: past those of entries that were lost.
const SEQUENCE_SKIP: u64 = 1 << 20;

/// The file of a segment.
pub(super) fn path(directory: &Path, number: u64, is_open: bool) -> PathBuf {
    let kind = if is_open { "open" } else { "segment" };
    directory.join(format!("{number:016x}.{kind}"))
}

/// The number in a file's name, and whether the segment is open.
fn parse_name(name: &str) -> Option<(u64, bool)> {
    let (number, kind) = name.split_once('.')?;
    let is_open = match kind {
        "open" => true,
        "segment" => false,
        _ => return None,
    };
    let is_plain = number
        .bytes()
        .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let number = u64::from_str_radix(number, 16).ok()?;
    // Higher ones are never reached, so that counting on cannot overflow.
    let is_ours = is_plain && name.len() == 17 + kind.len() && number <= u64::MAX / 2;
    is_ours.then_some((number, is_open))
}

/// Waits until the directory's entries survive a crash of the machine.
pub(super) fn sync_directory(directory: &Path) -> Result<(), EngineError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| EngineError::new("sync", directory, error))
}

/// Reads what is in the directory.
pub(super) fn recover(directory: &Path) -> Result<(Segments, Writer, Recovered), EngineError> {
    let fail = |action, error| EngineError::new(action, directory, error);
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(fail("create", error));
        }
        _ => {}
    }
    let mut recovered = Recovered::default();
    let (files, next_segment) =
        list(directory, &mut recovered).map_err(|error| fail("read", error))?;
    let last = files.keys().next_back().copied();
    let mut segments: VecDeque<Segment> = VecDeque::new();
    let mut to_erase = VecDeque::new();
    // The newest first: they are what is worth reading.
    for (number, is_open) in files.into_iter().rev() {
        let file = path(directory, number, is_open);
        match read(&file, number, is_open, &mut recovered) {
            Ok((mut segment, replaced)) => {
                for offset in replaced.into_iter().rev() {
                    to_erase.push_front(Place::new(&segment, offset));
                }
                if Some(number) != last {
                    segment.compact();
                }
                segments.push_front(segment);
            }
            // Where a sector is bad, that of one file says nothing of the others.
            Err(Unusable::Io(error)) if error.raw_os_error() != Some(EIO) => {
                return Err(EngineError::new("read", &file, error));
            }
            Err(reason) => {
                if !matches!(reason, Unusable::Empty) {
                    recovered.discarded += 1;
                }
                recovered.other_version += u64::from(matches!(reason, Unusable::Version));
                fs::remove_file(&file).map_err(|error| EngineError::new("delete", &file, error))?;
            }
        }
    }
    shorten(directory, &mut segments)?;
    let next_sequence = segments.iter().map(|segment| segment.next).max();
    let writer = Writer {
        next_sequence: next_sequence.map_or(0, |next| next.saturating_add(SEQUENCE_SKIP)),
        next_segment,
        to_erase,
        unsynced: Vec::new(),
        has_remains: false,
    };
    Ok((segments, writer, recovered))
}

/// The segments' files by number, and whether each is open; and the first number after
/// those that are in use.
fn list(directory: &Path, recovered: &mut Recovered) -> io::Result<(BTreeMap<u64, bool>, u64)> {
    let (mut files, mut next) = (BTreeMap::new(), 0);
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let parsed = name.to_str().and_then(parse_name);
        // A directory or a link with such a name is not ours, but its name is taken.
        next = next.max(parsed.map_or(0, |(number, _)| number + 1));
        match parsed.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file())) {
            Some((number, is_open)) => {
                // A number that has both names was copied: the full one counts.
                let replaced = files.insert(number, is_open);
                if let Some(replaced) = replaced {
                    files.insert(number, is_open && replaced);
                    fs::remove_file(path(directory, number, true))?;
                    recovered.discarded += 1;
                }
            }
            None => {
                recovered.foreign += 1;
                let name = || name.to_string_lossy().into_owned();
                recovered.foreign_name.get_or_insert_with(name);
            }
        }
    }
    Ok((files, next))
}

/// Reads a segment's index, or its headers. Also returns the offsets of records that
/// are to be marked as gone.
fn read(
    file: &Path,
    number: u64,
    is_open: bool,
    recovered: &mut Recovered,
) -> Result<(Segment, Vec<u32>), Unusable> {
    #[cfg(test)]
    super::tests::bad_sector::check_read(number)?;
    let mut segment = Segment::open(file, number, is_open)?;
    if !is_open && segment.load()? {
        return Ok((segment, Vec::new()));
    }
    if recovered.scanned >= MOST_SCANS {
        return Err(Unusable::Damaged);
    }
    recovered.scanned += 1;
    let replaced = segment.scan()?;
    recovered.torn_bytes += segment.length - segment.end;
    Ok((segment, replaced))
}

/// Cuts off what follows the last whole record of segments that are not full: records
/// are appended there.
fn shorten(directory: &Path, segments: &mut Segments) -> Result<(), EngineError> {
    for segment in segments.iter_mut().filter(|segment| segment.is_open) {
        if segment.length > segment.end {
            let file = path(directory, segment.number, true);
            let cut = segment.file.set_len(segment.end);
            cut.map_err(|error| EngineError::new("shorten", &file, error))?;
            segment.length = segment.end;
        }
    }
    Ok(())
}
