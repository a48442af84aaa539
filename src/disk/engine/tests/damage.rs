//! Files that were cut or changed: it opens, never panics, never returns a wrong value,
//! and goes on.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{SMALL, allocated, bad_sector, has, key, open, put, value};

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Changes files at random places.
pub(super) fn hurt(directory: &Path, random: &mut fastrand::Rng) {
    let files = files(directory);
    if files.is_empty() {
        return;
    }
    for _ in 0..random.usize(1..6) {
        let path = &files[random.usize(..files.len())];
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let length = file.metadata().unwrap().len();
        if length == 0 {
            continue;
        }
        // Headers, the index and the trailer are where damage matters most.
        let near = match random.u8(..3) {
            0 => random.u64(..length),
            1 => random.u64(..length.min(200)),
            _ => length - 1 - random.u64(..length.min(200)),
        };
        match random.u8(..4) {
            0 => file.set_len(near).unwrap(),
            1 => file
                .write_all_at(&vec![0; random.usize(1..5_000)], near)
                .unwrap(),
            _ => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, near).unwrap();
                byte[0] ^= 1 << random.u8(..8);
                file.write_all_at(&byte, near).unwrap();
            }
        }
    }
}

#[test]
fn a_segment_that_cannot_be_read_is_lost_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    (0..100).for_each(|number| put(&engine, number));
    let stored = engine.entries();
    drop(engine);
    let first = &files(directory.path())[0];
    let number = first.file_stem().unwrap().to_str().unwrap();
    bad_sector::set_read(&[u64::from_str_radix(number, 16).unwrap()]);
    let (engine, recovered) = open(directory.path(), SMALL);
    bad_sector::set_read(&[]);
    assert_eq!(recovered.discarded, 1);
    let left = engine.entries();
    assert!(0 < left && left < stored, "{left} of {stored}");
    drop(engine);
    // Where it can be read again, what it has may be older than what was stored since.
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!((recovered.discarded, engine.entries()), (0, left));
}

/// The numbers of the segments.
fn segments(directory: &Path) -> Vec<u64> {
    let number = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        u64::from_str_radix(name, 16).unwrap()
    };
    files(directory).into_iter().map(number).collect()
}

#[test]
fn a_segment_that_cannot_be_written_is_dropped_and_no_other() {
    for set_bad in [bad_sector::set_write, bad_sector::set_sync] {
        let directory = tempfile::tempdir().unwrap();
        let (engine, _) = open(directory.path(), 16 * SMALL);
        (0..400).for_each(|number| put(&engine, number));
        engine.sync().unwrap();
        let numbers = segments(directory.path());
        assert!(numbers.len() > 5, "{numbers:?}");
        // One in the middle, one before it, and the one that is written to.
        let bad = [numbers[3], numbers[1], numbers[numbers.len() - 1]];
        set_bad(&bad);
        // Each segment has some of them.
        let removed = || (0..400).step_by(5);
        removed().for_each(|number| engine.remove(&key(number)).unwrap());
        let left = segments(directory.path());
        assert!(bad.iter().all(|bad| !left.contains(bad)), "{left:?}");
        assert_eq!(left.len(), numbers.len() - bad.len());
        let entries = engine.entries();
        assert!(entries > 100 && engine.unreadable() > 30, "{entries}");
        assert!(
            (320..=400).contains(&(entries + engine.unreadable())),
            "all are counted"
        );
        // What was replaced in a bad segment is not back either, and it goes on.
        (1_000..1_040).for_each(|number| put(&engine, number));
        set_bad(&[]);
        drop(engine);
        let (engine, _) = open(directory.path(), 16 * SMALL);
        assert!(removed().all(|number| !has(&engine, number)));
        assert!((1_000..1_040).all(|number| has(&engine, number)));
        assert!(engine.entries() >= entries);
    }
}

#[test]
fn a_record_is_not_back_when_the_one_that_replaced_it_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), 16 * SMALL);
    (0..100).for_each(|number| put(&engine, number));
    let older = segments(directory.path());
    assert!(older.len() > 2, "{older:?}");
    // The older ones cannot be marked, nor can their files be deleted.
    bad_sector::set_write(&older);
    let away = directory.path().with_extension("away");
    fs::rename(directory.path(), &away).unwrap();
    fs::write(directory.path(), "in its place").unwrap();
    assert!(engine.put_batch(&[(key(1), b"newer".to_vec())]).is_err());
    fs::remove_file(directory.path()).unwrap();
    fs::rename(&away, directory.path()).unwrap();
    bad_sector::set_write(&[*older.last().unwrap()]);
    engine.remove(&key(99)).unwrap();
    bad_sector::set_write(&[]);
    assert!(!segments(directory.path()).contains(older.last().unwrap()));
    drop(engine);
    let (engine, _) = open(directory.path(), 16 * SMALL);
    assert_eq!(
        engine.get(&key(1)).unwrap(),
        None,
        "neither the older nor the newer"
    );
}

#[test]
fn damaged_files_are_absent_entries() {
    let mut random = fastrand::Rng::with_seed(15);
    let (mut kept, mut lost) = (0, 0);
    for round in 0..100 {
        let directory = tempfile::tempdir().unwrap();
        let (engine, _) = open(directory.path(), SMALL);
        let count = random.u64(1..250);
        let batch: Vec<_> = (0..count)
            .map(|number| (key(number), value(number)))
            .collect();
        engine.put_batch(&batch).unwrap();
        let removed: Vec<_> = (0..count).filter(|_| random.u8(..24) == 0).collect();
        for number in &removed {
            engine.remove(&key(*number)).unwrap();
        }
        let before = (0..count).filter(|number| has(&engine, *number)).count();
        drop(engine);
        hurt(directory.path(), &mut random);
        let (engine, _) = open(directory.path(), SMALL);
        for number in 0..count {
            let found = has(&engine, number);
            assert!(
                !(found && removed.contains(&number)),
                "round {round}: {number} is back"
            );
            kept += usize::from(found);
        }
        lost += before;
        // It goes on, within the bound.
        for number in 1_000..1_300 {
            put(&engine, number);
            assert!(allocated(directory.path()) <= SMALL, "round {round}");
        }
        drop(engine);
        let (engine, _) = open(directory.path(), SMALL);
        assert!(has(&engine, 1_299), "round {round}");
    }
    lost -= kept;
    // Damage costs what it hits, not everything.
    assert!(kept > lost && lost > 0, "{kept} {lost}");
}

#[test]
fn a_flipped_bit_in_a_value_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    (1..4).for_each(|number| put(&engine, number));
    let file = directory.path().join("0000000000000000.open");
    let mut bytes = fs::read(&file).unwrap();
    // The last byte of the first value.
    bytes[40 + 40 + value(1).len() - 1] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(
        (1..4)
            .map(|number| has(&engine, number))
            .collect::<Vec<_>>(),
        [false, true, true]
    );
    assert_eq!(engine.unreadable(), 1);
}

#[test]
fn a_damaged_index_is_replaced_by_reading_the_headers() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), 64 * SMALL);
    (0..400).for_each(|number| put(&engine, number));
    drop(engine);
    let first = &files(directory.path())[0];
    assert!(first.extension().is_some_and(|kind| kind == "segment"));
    let mut bytes = fs::read(first).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(first, bytes).unwrap();
    let (engine, recovered) = open(directory.path(), 64 * SMALL);
    // This one and the one that is written to.
    assert_eq!(recovered.scanned, 2);
    assert!((0..400).all(|number| has(&engine, number)));
}

#[test]
fn a_torn_tail_is_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    (0..3).for_each(|number| put(&engine, number));
    drop(engine);
    let file = directory.path().join("0000000000000000.open");
    let length = fs::metadata(&file).unwrap().len();
    OpenOptions::new()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(length - 1)
        .unwrap();
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!(recovered.torn_bytes, 40 + value(2).len() as u64 - 1);
    assert_eq!(
        (0..3)
            .map(|number| has(&engine, number))
            .collect::<Vec<_>>(),
        [true, true, false]
    );
    put(&engine, 5);
    drop(engine);
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!(recovered.torn_bytes, 0);
    assert!(has(&engine, 5) && has(&engine, 1));
}

#[test]
fn a_replaced_value_stays_away_when_the_newer_one_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    put(&engine, 1);
    engine.put_batch(&[(key(1), b"newer".to_vec())]).unwrap();
    drop(engine);
    let file = directory.path().join("0000000000000000.open");
    let whole = fs::read(&file).unwrap();
    let newer = 40 + 40 + value(1).len();
    // Each byte of the newer record, its header included.
    for place in newer..whole.len() {
        let mut bytes = whole.clone();
        bytes[place] ^= 16;
        fs::write(&file, bytes).unwrap();
        let (engine, _) = open(directory.path(), SMALL);
        assert_eq!(engine.get(&key(1)).unwrap(), None, "byte {place}");
    }
}

#[test]
fn an_older_record_behind_the_last_one_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    put(&engine, 1);
    let file = directory.path().join("0000000000000000.open");
    // As a write that failed may leave it: whole, and with a right checksum.
    let older = fs::read(&file).unwrap().split_off(40);
    engine.put_batch(&[(key(1), b"newer".to_vec())]).unwrap();
    drop(engine);
    let mut bytes = fs::read(&file).unwrap();
    bytes.extend_from_slice(&older);
    fs::write(&file, bytes).unwrap();
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!(recovered.torn_bytes, older.len() as u64);
    assert_eq!(engine.get(&key(1)).unwrap().as_deref(), Some(&b"newer"[..]));
}

#[test]
fn a_removed_value_hides_an_older_one_that_a_kill_left_unmarked() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    put(&engine, 1);
    engine.put_batch(&[(key(1), b"newer".to_vec())]).unwrap();
    drop(engine);
    // A kill after the newer one was written, and before the older was marked as gone.
    let file = directory.path().join("0000000000000000.open");
    let unmark = || {
        let file = OpenOptions::new().write(true).open(&file).unwrap();
        file.write_all_at(b"live", 40).unwrap();
    };
    unmark();
    let (engine, _) = open(directory.path(), SMALL);
    assert_eq!(engine.get(&key(1)).unwrap().as_deref(), Some(&b"newer"[..]));
    engine.remove(&key(1)).unwrap();
    drop(engine);
    assert_eq!(&fs::read(&file).unwrap()[40..44], b"gone");
    unmark();
    let (engine, _) = open(directory.path(), SMALL);
    assert_eq!(engine.get(&key(1)).unwrap(), None);
}
