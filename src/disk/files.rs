//! Small files that are replaced as a whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The bytes of the files that are directly in a directory.
pub(super) fn bytes_of(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        match entry?.metadata() {
            Ok(metadata) if metadata.is_file() => bytes += metadata.len(),
            // One that was replaced meanwhile.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(bytes)
}

/// Writes a file in place of the one at a path: whoever reads it finds the one or the
/// other. `durable` says whether it survives the machine's end at once.
pub(super) fn replace(path: &Path, bytes: &[u8], durable: bool) -> io::Result<File> {
    let new = path.with_extension("new");
    // Left by a process that was killed.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(bytes)?;
    if durable {
        file.sync_all()?;
    }
    std::fs::rename(&new, path)?;
    if durable && let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(file)
}
