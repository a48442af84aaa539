//! Segments of the storage engine that somebody has changed: it opens, and goes on.
//! Without forged checksums, no value is wrong and nothing that was removed is back.
//! An input is a list of edits, four bytes each: what to do, to which file, and where.

#![no_main]

use std::fs;
use std::path::{Path, PathBuf};

use ordgate::disk::engine::{Engine, EntryKey};

const ENTRIES: u64 = 160;

fn key(number: u64) -> EntryKey {
    let half = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = EntryKey::default();
    key[..8].copy_from_slice(&half.to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

fn value(number: u64) -> Vec<u8> {
    vec![number as u8; 8 + (number as usize * 37) % 1500]
}

fn is_removed(number: u64) -> bool {
    number % 5 == 3
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).expect("a directory");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    files
}

/// Two full segments, and one that is written to.
fn store(directory: &Path) {
    let (engine, _) = Engine::open(directory, Engine::LEAST_BYTES).expect("it opens");
    let batch: Vec<_> = (0..ENTRIES).map(|n| (key(n), value(n))).collect();
    engine.put_batch(&batch).expect("it is stored");
    for number in (0..ENTRIES).filter(|number| is_removed(*number)) {
        engine.remove(&key(number)).expect("it is removed");
    }
}

fn forge(bytes: &mut [u8], from: usize, to: usize, at: usize) {
    if let Some(covered) = bytes.get(from..to) {
        let checksum = crc32fast::hash(covered);
        bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Applies one edit. Returns whether it forged a checksum.
fn edit(bytes: &mut Vec<u8>, what: u8, operand: u8, place: usize) -> bool {
    // The last part of a file has the index: some places count from the end.
    let place = match what & 8 == 0 {
        true => place,
        false => bytes.len().saturating_sub(place % 512),
    };
    match what & 7 {
        0 => bytes.truncate(place),
        1 => bytes.resize(bytes.len() + place % 8192, operand),
        2..=4 => {
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= operand | 1;
            }
        }
        // The preamble, a header, the trailer.
        5 => forge(bytes, 0, 36, 36),
        6 => forge(bytes, place + 8, place + 40, place + 4),
        _ => {
            let length = bytes.len();
            if let Some(start) = length.checked_sub(48) {
                forge(bytes, start, length - 4, length - 4);
            }
        }
    }
    what & 7 >= 5
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    thread_local! {
        static BASE: tempfile::TempDir = {
            let directory = memory();
            store(directory.path());
            directory
        };
    }
    let directory = memory();
    let mut forged = false;
    BASE.with(|base| {
        let base = files(base.path());
        let mut contents: Vec<_> = base
            .iter()
            .map(|file| fs::read(file).expect("a file"))
            .collect();
        for edits in input.chunks_exact(4).take(64) {
            let [what, operand, low, high] = edits else {
                continue;
            };
            let count = contents.len();
            let file = &mut contents[usize::from(*what >> 4) % count];
            forged |= edit(
                file,
                *what,
                *operand,
                usize::from(u16::from_le_bytes([*low, *high])),
            );
        }
        for (file, content) in base.iter().zip(contents) {
            let name = file.file_name().expect("a name");
            fs::write(directory.path().join(name), content).expect("it is written");
        }
    });
    let (engine, _) = Engine::open(directory.path(), Engine::LEAST_BYTES).expect("it opens");
    for number in 0..ENTRIES {
        let found = engine.get(&key(number)).expect("it is read");
        let may_be = found.is_none() || !is_removed(number) && found == Some(value(number));
        assert!(forged || may_be, "{number}: {found:?}");
    }
    assert!(engine.bytes() <= Engine::LEAST_BYTES);
    engine.remove(&key(1)).expect("it is removed");
    engine
        .put_batch(&[(key(2), b"new".to_vec())])
        .expect("it is stored");
    drop(engine);
    let (engine, _) = Engine::open(directory.path(), Engine::LEAST_BYTES).expect("it opens again");
    assert_eq!(
        engine.get(&key(2)).expect("it is read").as_deref(),
        Some(&b"new"[..])
    );
    assert_eq!(engine.get(&key(1)).expect("it is read"), None);
});

/// A directory in memory, where there is one.
fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a directory")
}
