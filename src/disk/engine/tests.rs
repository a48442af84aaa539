//! Tests of the engine: what it keeps, its bound, and files that are not as it left
//! them.

mod crash;
mod damage;
mod faults;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use proptest::prelude::{Strategy, any, prop_oneof, proptest};

use super::segment::PREAMBLE;
use super::{Engine, EngineError, EntryKey, Recovered};

/// Segments that cannot be read, written or made durable, by this thread.
pub(super) mod bad_sector {
    use std::cell::RefCell;
    use std::io;

    thread_local! {
        static READ: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
        static WRITE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
        static SYNC: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }

    pub(in crate::disk::engine) fn set_read(segments: &[u64]) {
        READ.set(segments.to_vec());
    }

    pub(in crate::disk::engine) fn set_write(segments: &[u64]) {
        WRITE.set(segments.to_vec());
    }

    pub(in crate::disk::engine) fn set_sync(segments: &[u64]) {
        SYNC.set(segments.to_vec());
    }

    pub(in crate::disk::engine) fn check_read(segment: u64) -> io::Result<()> {
        result(READ.with_borrow(|bad| bad.contains(&segment)))
    }

    pub(in crate::disk::engine) fn check_write(segment: u64) -> io::Result<()> {
        result(WRITE.with_borrow(|bad| bad.contains(&segment)))
    }

    pub(in crate::disk::engine) fn check_sync(segment: u64) -> io::Result<()> {
        result(SYNC.with_borrow(|bad| bad.contains(&segment)))
    }

    fn result(is_bad: bool) -> io::Result<()> {
        match is_bad {
            true => Err(rustix::io::Errno::IO.into()),
            false => Ok(()),
        }
    }
}

const SMALL: u64 = Engine::LEAST_BYTES;

/// The key of a number; as good as random.
fn key(number: u64) -> EntryKey {
    let mut random = fastrand::Rng::with_seed(number);
    random.u128(..).to_le_bytes()
}

/// The value of a number: up to 3,000 bytes that begin with it.
fn value(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(!number);
    let mut value = number.to_le_bytes().to_vec();
    let length = random.usize(..3_000);
    value.extend(std::iter::repeat_with(|| random.u8(..)).take(length));
    value
}

fn open(directory: &Path, max_bytes: u64) -> (Engine, Recovered) {
    Engine::open(directory, max_bytes).expect("it opens")
}

fn put(engine: &Engine, number: u64) {
    engine
        .put_batch(&[(key(number), value(number))])
        .expect("it is stored");
}

fn has(engine: &Engine, number: u64) -> bool {
    match engine.get(&key(number)).expect("it is read") {
        Some(found) => {
            assert_eq!(found, value(number), "the value of {number}");
            true
        }
        None => false,
    }
}

/// Bytes that the file system has allocated for the files.
fn allocated(directory: &Path) -> u64 {
    // The blocks of a file that is in many pieces include one that lists the pieces.
    const LIST: u64 = 4096;
    let files = fs::read_dir(directory).unwrap();
    files
        .map(|entry| entry.unwrap().metadata().unwrap())
        .map(|file| file.len().max((file.blocks() * 512).saturating_sub(LIST)))
        .sum()
}

#[test]
fn what_was_put_is_there_after_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!(recovered, Recovered::default());
    let batch: Vec<_> = (0..40).map(|n| (key(n), value(n))).collect();
    engine.put_batch(&batch).unwrap();
    engine.remove(&key(7)).unwrap();
    assert_eq!((engine.entries(), engine.next_sequence()), (39, 40));
    drop(engine);
    let (engine, recovered) = open(directory.path(), SMALL);
    assert!((0..40).all(|n| has(&engine, n) == (n != 7)));
    assert!(!has(&engine, 41));
    assert_eq!(recovered.entries, 39);
    assert_eq!((recovered.torn_bytes, recovered.discarded), (0, 0));
    assert!(engine.next_sequence() > 40);
    assert_eq!(engine.oldest_sequence(), 0);
}

#[test]
fn the_last_value_of_a_key_counts_wherever_the_others_are() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), 64 * SMALL);
    let versions = 40_000;
    // Twice in one batch, over many segments, and once more after a restart.
    for version in 0..versions {
        let other = (key(version), vec![1; 500]);
        engine
            .put_batch(&[
                (key(1), vec![0]),
                other,
                (key(1), version.to_le_bytes().to_vec()),
            ])
            .unwrap();
    }
    let last = |engine: &Engine| engine.get(&key(1)).unwrap();
    assert_eq!(last(&engine), Some((versions - 1).to_le_bytes().to_vec()));
    drop(engine);
    let (engine, recovered) = open(directory.path(), 64 * SMALL);
    assert!(recovered.segments > 10, "{recovered:?}");
    assert_eq!(last(&engine), Some((versions - 1).to_le_bytes().to_vec()));
    engine.remove(&key(1)).unwrap();
    assert_eq!(last(&engine), None);
    drop(engine);
    let (engine, _) = open(directory.path(), 64 * SMALL);
    assert_eq!(last(&engine), None);
}

#[test]
fn the_oldest_are_evicted_and_the_files_never_exceed_the_bound() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    let count = 2_000;
    for number in 0..count {
        put(&engine, number);
        let (bytes, allocated) = (engine.bytes(), allocated(directory.path()));
        assert!(bytes <= SMALL && allocated <= SMALL, "{bytes} {allocated}");
    }
    let oldest = (0..count).find(|n| has(&engine, *n)).unwrap();
    assert!((oldest..count).all(|n| has(&engine, n)), "from {oldest} on");
    assert_eq!(engine.entries(), count - oldest);
    assert_eq!(engine.evicted(), oldest);
    assert_eq!(engine.oldest_sequence(), oldest);
    // At least the last three of four segments are full.
    assert!(engine.bytes() > SMALL / 2, "{}", engine.bytes());
}

#[test]
fn small_values_do_not_make_the_index_large() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    for number in 0..3_000 {
        engine.put_batch(&[(key(number), vec![])]).unwrap();
    }
    let most = SMALL / super::MIN_RECORD_SHARE;
    assert!(engine.entries() <= most, "{}", engine.entries());
    assert!(engine.entries() > most / 2);
    assert!(engine.get(&key(2_999)).unwrap().is_some());
}

#[test]
fn a_lower_bound_holds_from_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), 256 * SMALL);
    for number in 0..2_000 {
        put(&engine, number);
    }
    drop(engine);
    let (engine, _) = open(directory.path(), SMALL);
    assert!(allocated(directory.path()) <= SMALL);
    for number in 2_000..2_400 {
        put(&engine, number);
        assert!(allocated(directory.path()) <= SMALL);
    }
    assert!(has(&engine, 2_399));
}

#[test]
fn too_large_a_value_is_refused_and_the_largest_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    let most = engine.max_value_bytes();
    let refused = engine.put_batch(&[(key(1), vec![1]), (key(2), vec![2; most + 1])]);
    assert!(matches!(refused, Err(EngineError::ValueTooLarge { bytes, .. }) if bytes == most + 1));
    assert_eq!(engine.get(&key(1)).unwrap(), None);
    for number in 0..10 {
        engine.put_batch(&[(key(number), vec![3; most])]).unwrap();
        assert!(allocated(directory.path()) <= SMALL);
    }
    assert_eq!(engine.get(&key(9)).unwrap(), Some(vec![3; most]));
    assert!(matches!(
        Engine::open(directory.path(), SMALL - 1),
        Err(EngineError::TooFewBytes(_))
    ));
}

#[test]
fn readers_see_whole_values_while_others_write() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..3_000).for_each(|number| put(&engine, number)));
        let mut found = 0;
        while !writer.is_finished() || found == 0 {
            found += (0..3_000).filter(|number| has(&engine, *number)).count();
        }
    });
    assert_eq!(engine.unreadable(), 0);
}

/// What a history is made of.
#[derive(Clone, Debug)]
enum Step {
    Put(Vec<(u8, u16)>),
    Remove(u8),
    Reopen,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let batch = proptest::collection::vec((any::<u8>(), 0..3_000u16), 0..30);
    prop_oneof![
        8 => batch.prop_map(Step::Put),
        4 => any::<u8>().prop_map(Step::Remove),
        1 => proptest::prelude::Just(Step::Reopen),
        1 => proptest::prelude::Just(Step::Sync),
    ]
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(24))]

    /// Against a map that forgets nothing: what is found is what was put last, and
    /// nothing is missing unless entries were evicted.
    #[test]
    fn it_behaves_as_a_map(steps in proptest::collection::vec(step(), 1..60), large in any::<bool>()) {
        let directory = tempfile::tempdir().unwrap();
        let max_bytes = if large { 64 * SMALL } else { SMALL };
        let (mut engine, _) = open(directory.path(), max_bytes);
        let mut model = HashMap::new();
        let mut has_evicted = false;
        for (turn, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(batch) => {
                    let batch: Vec<_> = batch
                        .into_iter()
                        .map(|(number, length)| {
                            let byte = (turn + usize::from(length)) as u8;
                            (key(number.into()), vec![byte; length.into()])
                        })
                        .collect();
                    engine.put_batch(&batch).unwrap();
                    model.extend(batch);
                }
                Step::Remove(number) => {
                    engine.remove(&key(number.into())).unwrap();
                    model.remove(&key(number.into()));
                }
                Step::Reopen => {
                    has_evicted |= engine.evicted() > 0;
                    drop(engine);
                    engine = open(directory.path(), max_bytes).0;
                }
                Step::Sync => engine.sync().unwrap(),
            }
            has_evicted |= engine.evicted() > 0;
            assert!(allocated(directory.path()) <= max_bytes);
        }
        for number in 0..=255 {
            let (found, put) = (engine.get(&key(number)).unwrap(), model.get(&key(number)));
            assert!(found.as_ref() == put || found.is_none() && has_evicted, "{number}");
        }
        assert_eq!(engine.unreadable(), 0);
    }
}

#[test]
fn an_empty_file_is_what_a_kill_leaves_and_is_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("0000000000000003.open");
    fs::write(&file, "").unwrap();
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!(recovered.discarded, 0);
    assert!(!file.exists());
    put(&engine, 1);
    // Cut within the preamble, it is one.
    drop(engine);
    let file = directory.path().join("0000000000000004.open");
    fs::OpenOptions::new()
        .write(true)
        .open(file)
        .unwrap()
        .set_len(PREAMBLE as u64 - 1)
        .unwrap();
    assert_eq!(open(directory.path(), SMALL).1.discarded, 1);
}
