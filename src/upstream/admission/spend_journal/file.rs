//! The journal's file: a header and a fixed number of pages, one for each budget.
//!
//! It is created at its full size, so a file system that fills up later cannot refuse
//! a write. Nothing is forced to the disk: what was written survives the end of the
//! process, and after the end of the machine another boot id says that it may be old.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::{FallocateFlags, fallocate};

use crate::state_dir::{self, BootId, StateDir, file_options};
use crate::upstream::admission::spending::PAGE;

/// The file's name, and its name while it is created.
pub(super) const NAME: &str = state_dir::SPENT;
const NEW: &str = "spent.new";
/// Budgets that have a page.
pub(crate) const SLOTS: usize = 255;
/// The size of the file.
pub(super) const BYTES: u64 = (SLOTS as u64 + 1) * PAGE as u64;
const MAGIC: [u8; 8] = *b"ordspnh1";
/// The header's bytes before its digest.
const BODY: usize = 41;
const NEVER: u64 = u64::MAX;

/// The open file.
pub(super) struct SpendFile {
    file: File,
    path: PathBuf,
    #[cfg(test)]
    pub(super) fault: super::tests::Fault,
}

/// What the header says of budgets that have no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    /// Any number of requests may have been sent before this time since boot.
    pub(super) unknown_before: Option<Duration>,
    /// Whether requests are sent that are not in the file.
    pub(super) is_incomplete: bool,
}

impl SpendFile {
    /// Opens the file of earlier processes and reads it whole; `None` if there is none.
    pub(super) fn open(directory: &StateDir) -> io::Result<Option<(Self, Vec<u8>)>> {
        let path = directory.path().join(NAME);
        let file = match file_options().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        (&file).take(BYTES + 1).read_to_end(&mut bytes)?;
        Ok(Some((Self::of(file, path), bytes)))
    }

    /// Creates the file with a header and empty pages.
    pub(super) fn create(directory: &StateDir, header: &[u8; PAGE]) -> io::Result<Self> {
        let new = directory.path().join(NEW);
        let mut options = file_options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&new)?;
        let created = match fallocate(&file, FallocateFlags::empty(), 0, BYTES) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                file.write_all_at(&vec![0; usize::try_from(BYTES).unwrap_or(0)], 0)
            }
            Err(error) => Err(error.into()),
        };
        let path = directory.path().join(NAME);
        let created = created
            .and_then(|()| file.write_all_at(header, 0))
            .and_then(|()| fs::rename(&new, &path));
        if let Err(error) = created {
            // It takes the little space that is left.
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        Ok(Self::of(file, path))
    }

    fn of(file: File, path: PathBuf) -> Self {
        Self {
            file,
            path,
            #[cfg(test)]
            fault: super::tests::Fault::default(),
        }
    }

    /// Writes the page of a slot, or the header, which is page 0.
    pub(super) fn write(&self, page: usize, bytes: &[u8; PAGE]) -> io::Result<()> {
        #[cfg(test)]
        self.fault.check()?;
        self.file.write_all_at(bytes, (page * PAGE) as u64)
    }

    /// Whether the file was removed or replaced by someone else.
    pub(super) fn was_removed(&self) -> io::Result<bool> {
        let open = self.file.metadata()?;
        match fs::metadata(&self.path) {
            Ok(named) => Ok((open.dev(), open.ino()) != (named.dev(), named.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Removes the file, if there is one, so that the next process knows that it is
/// incomplete.
pub(super) fn remove(directory: &StateDir) -> io::Result<()> {
    match fs::remove_file(directory.path().join(NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl FileHeader {
    pub(super) fn page(self, boot: &BootId, since_boot: Duration) -> Box<[u8; PAGE]> {
        let mut page = Box::new([0; PAGE]);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(NEVER - 1);
        page[..8].copy_from_slice(&MAGIC);
        page[8..24].copy_from_slice(boot);
        page[24..32].copy_from_slice(&nanos(since_boot).to_le_bytes());
        let unknown_before = self.unknown_before.map_or(NEVER, nanos);
        page[32..40].copy_from_slice(&unknown_before.to_le_bytes());
        page[40] = u8::from(self.is_incomplete);
        let digest = digest_of(&page[..BODY]);
        page[BODY..BODY + digest.len()].copy_from_slice(&digest);
        page
    }

    /// Reads a header; `Err` says why it says nothing.
    pub(super) fn read(
        page: &[u8],
        boot: Option<&BootId>,
        since_boot: Duration,
    ) -> Result<Self, &'static str> {
        let is_whole = page.len() == PAGE && page[..8] == MAGIC;
        if !is_whole || page[BODY..BODY + 16] != digest_of(&page[..BODY]) {
            return Err("the journal is damaged");
        }
        let number = |at: usize| {
            let bytes = page[at..at + 8].iter().rev();
            bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let Some(boot) = boot else {
            return Err("the boot id cannot be read");
        };
        if page[8..24] != *boot || Duration::from_nanos(number(24)) > since_boot {
            return Err("the machine has been restarted, or it is another one");
        }
        let unknown_before = Some(number(32)).filter(|before| *before != NEVER);
        Ok(Self {
            unknown_before: unknown_before.map(Duration::from_nanos),
            is_incomplete: page[40] != 0,
        })
    }
}

fn digest_of(bytes: &[u8]) -> [u8; 16] {
    let mut first = [0; 16];
    first.copy_from_slice(&digest(&SHA256, bytes).as_ref()[..16]);
    first
}
