//! The position in the journal, in a file of the state directory: what is stored on disk
//! was checked against all records up to it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::position::{AppliedPosition, JournalPosition, SavedPosition};
use super::record::RecordUid;
use crate::portable::bytes::{Reader, put_record, take_record};
use crate::portable::codec::CheckedPosition;
use crate::shared::allowance::ProcessId;
use crate::state_dir::{BootId, DirectoryId, JOURNAL, file_options};

const HEAD: [u8; 17] = *b"ordgate-journal-5";

/// What the file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PositionFile {
    /// There is none: no earlier run has followed a journal.
    None,
    /// With the process that has written it, if that had this directory for certain. Of a
    /// copy, the process may still be there.
    Saved(SavedPosition, Option<ProcessId>),
    /// It cannot be read, or is of another version: what was stored may have been purged
    /// since.
    Unreadable,
}

/// Its path.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(JOURNAL)
}

/// Reads the file of the directory with this identity, if that is known. `now` is the time
/// of day.
pub(super) fn read(
    directory: &Path,
    identity: Option<DirectoryId>,
    now: SystemTime,
) -> PositionFile {
    match fs::read(path(directory)) {
        Ok(bytes) => parse(&bytes, identity, now).unwrap_or(PositionFile::Unreadable),
        Err(error) if error.kind() == io::ErrorKind::NotFound => PositionFile::None,
        Err(_) => PositionFile::Unreadable,
    }
}

fn parse(bytes: &[u8], identity: Option<DirectoryId>, now: SystemTime) -> Option<PositionFile> {
    let mut whole = Reader(bytes);
    let mut from = Reader(take_record(&mut whole)?);
    if from.array()? != HEAD {
        return None;
    }
    let process = ProcessId(u128::from_le_bytes(from.array()?));
    let written_in = DirectoryId {
        boot: from.array()?,
        device: from.u64()?,
        inode: from.u64()?,
    };
    let process = (Some(written_in) == identity).then_some(process);
    let position = JournalPosition::read(&mut from)?;
    let (maker, number) = (u128::from_le_bytes(from.array()?), from.u64()?);
    let last = (number > 0).then_some(RecordUid {
        process: ProcessId(maker),
        number,
    });
    let written = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(from.u64()?))?;
    // The clock was set back: how old it is, is not known.
    let age = now.duration_since(written).unwrap_or(Duration::MAX);
    let count = u64::from(from.u32()?);
    let others = (0..count).map(|_| Some(ProcessId(u128::from_le_bytes(from.array()?))));
    let applied = AppliedPosition {
        position,
        last,
        others: others.collect::<Option<_>>()?,
    };
    let saved = PositionFile::Saved(SavedPosition { applied, age }, process);
    (from.is_at_end() && whole.is_at_end()).then_some(saved)
}

/// Writes the file in place of the one that is there: this process has applied all records
/// up to a position, the last of which has this uid. It waits for the disk.
pub(super) fn write(
    directory: &Path,
    identity: Option<DirectoryId>,
    process: ProcessId,
    applied: &AppliedPosition,
    known_at: SystemTime,
) -> io::Result<()> {
    let mut content = HEAD.to_vec();
    content.extend_from_slice(&process.0.to_le_bytes());
    // The system has no boot of this name.
    let identity = identity.unwrap_or(DirectoryId {
        boot: BootId::default(),
        device: 0,
        inode: 0,
    });
    content.extend_from_slice(&identity.boot);
    content.extend_from_slice(&identity.device.to_le_bytes());
    content.extend_from_slice(&identity.inode.to_le_bytes());
    applied.position.write(&mut content);
    // No record has the number 0.
    let last = applied.last.map(|last| (last.process.0, last.number));
    let (maker, number) = last.unwrap_or_default();
    content.extend_from_slice(&maker.to_le_bytes());
    content.extend_from_slice(&number.to_le_bytes());
    let since = known_at.duration_since(SystemTime::UNIX_EPOCH);
    let millis = since.unwrap_or_default().as_millis();
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    content.extend_from_slice(&millis.to_le_bytes());
    let count = u32::try_from(applied.others.len()).map_err(io::Error::other)?;
    content.extend_from_slice(&count.to_le_bytes());
    for other in &applied.others {
        content.extend_from_slice(&other.0.to_le_bytes());
    }
    let mut bytes = Vec::new();
    put_record(&mut bytes, &content);
    let new = directory.join("journal.new");
    let mut options = file_options();
    let mut file: File = options.write(true).create(true).truncate(true).open(&new)?;
    file.write_all(&bytes)?;
    file.sync_data()?;
    fs::rename(&new, path(directory))
}

#[cfg(test)]
mod tests {
    use super::super::position::Generation;
    use super::*;

    #[test]
    fn a_position_is_read_with_its_age_and_a_damaged_file_is_unreadable() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let identity = |boot, device, inode| {
            let boot = [boot; 16];
            Some(DirectoryId {
                boot,
                device,
                inode,
            })
        };
        let own = identity(4, 5, 6);
        assert_eq!(read(directory, own, now), PositionFile::None);
        let position = JournalPosition {
            generation: Generation([3; 16]),
            record: 77,
        };
        let applied = AppliedPosition {
            position,
            last: Some(RecordUid {
                process: ProcessId(8),
                number: 9,
            }),
            others: [8, 9].map(ProcessId).into(),
        };
        write(directory, own, ProcessId(7), &applied, now).unwrap();
        let at = |seconds| now + Duration::from_secs(seconds);
        let read_later = |seconds| read(directory, own, at(seconds));
        let saved = |age, process| {
            let applied = applied.clone();
            PositionFile::Saved(SavedPosition { applied, age }, process)
        };
        let (five, process) = (Duration::from_secs(5), Some(ProcessId(7)));
        assert_eq!(read_later(5), saved(five, process));
        let before = now - five;
        assert_eq!(read(directory, own, before), saved(Duration::MAX, process));
        // Of a copy of the directory, and of one on a machine that may be another one, the
        // process that has written it may still be there.
        for other in [
            identity(4, 5, 7),
            identity(4, 4, 6),
            identity(3, 5, 6),
            None,
        ] {
            let read = read(directory, other, at(5));
            assert_eq!(read, saved(five, None), "{other:?}");
        }
        // Nor does an unknown boot equal another unknown one.
        write(directory, None, ProcessId(7), &applied, now).unwrap();
        assert_eq!(read(directory, None, at(5)), saved(five, None));
        write(directory, own, ProcessId(7), &applied, now).unwrap();
        let bytes = fs::read(path(directory)).unwrap();
        for len in 0..bytes.len() {
            fs::write(path(directory), &bytes[..len]).unwrap();
            assert_eq!(read_later(5), PositionFile::Unreadable, "{len}");
        }
    }
}
