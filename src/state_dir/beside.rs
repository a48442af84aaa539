//! What a process that runs beside the one with the lock leaves in the directory: that it
//! spends, and that it has purged.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use super::{FILE_MODE, file_options};

/// The file with the names of processes that spend without the lock.
pub(super) const SHARED: &str = "shared";
/// The file that says that one of them has purged.
const PURGED: &str = "purged";

/// A process that has no lock on the directory.
#[derive(Debug)]
pub(super) struct Beside {
    path: PathBuf,
    /// What it is called in the file, with the end of the line.
    line: String,
}

impl Beside {
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let mut name = [0; 8];
        let filled = SystemRandom::new().fill(&mut name);
        filled.map_err(|_unspecified| io::Error::other("no source of randomness"))?;
        Ok(Self {
            path: path.into(),
            line: format!("{:016x}\n", u64::from_ne_bytes(name)),
        })
    }

    /// Says that this process spends what the journal does not have. The process with the
    /// lock may have removed the file since it was said last.
    pub(super) fn mark_spending(&self) -> io::Result<()> {
        let file = self.path.join(SHARED);
        let known = match fs::read(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            known => known.unwrap_or_default(),
        };
        let line = self.line.as_bytes();
        if known.windows(line.len()).any(|known| known == line) {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        let options = options.append(true).create(true).mode(FILE_MODE);
        options.open(&file)?.write_all(line)
    }

    /// Whether other processes have spent what the journal does not have.
    pub(super) fn have_others_spent(&self) -> io::Result<bool> {
        match fs::read(self.path.join(SHARED)) {
            Ok(known) => Ok(known != self.line.as_bytes()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Says, before a purge is acknowledged, that what is stored in the directory may have been
/// purged by a process that does not use it.
pub(super) fn mark_purged(path: &Path) -> io::Result<()> {
    if !has_purged(path)? {
        let mut options = file_options();
        options.write(true).create(true);
        options.open(path.join(PURGED))?.sync_all()?;
        fs::File::open(path)?.sync_all()?;
    }
    Ok(())
}

pub(super) fn has_purged(path: &Path) -> io::Result<bool> {
    fs::exists(path.join(PURGED))
}

pub(super) fn forget_spending(path: &Path) -> io::Result<()> {
    remove(&path.join(SHARED))
}

pub(super) fn forget_purged(path: &Path) -> io::Result<()> {
    remove(&path.join(PURGED))
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
