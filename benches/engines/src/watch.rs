//! What an engine takes: bytes on disk, and resident memory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of all files below a directory: their lengths, and what is allocated.
pub fn bytes(directory: &Path) -> (u64, u64) {
    let (mut long, mut allocated) = (0, 0);
    let Ok(entries) = fs::read_dir(directory) else {
        return (0, 0);
    };
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() {
            let inner = bytes(&entry.path());
            long += inner.0;
            allocated += inner.1;
        } else {
            long += metadata.len();
            allocated += metadata.blocks() * 512;
        }
    }
    (long, allocated)
}

/// A field of /proc/PID/status in kB: `VmRSS:`, `VmHWM:`, `RssAnon:`.
pub fn memory(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0)
}

/// Each regular file below a directory.
pub fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}
