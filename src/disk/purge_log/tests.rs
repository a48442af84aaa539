//! The purge log: what it forgets, and what is absent because of it.

mod faults;

use std::fs;
use std::sync::{Arc, mpsc};

use super::records::{MOST_PURGES, MOST_REMOVALS};
use super::*;
use crate::cache::purge::{BlockRange, Purge};

const ONE: MeaningDigest = MeaningDigest([1; 32]);
const TWO: MeaningDigest = MeaningDigest([2; 32]);
const TIP: MeaningDigest = MeaningDigest([3; 32]);
const KEY: [u8; 16] = [4; 16];

fn open(path: &Path) -> PurgeLog {
    let (log, begun) = PurgeLog::open(path).unwrap();
    assert_eq!(begun, Begun::Continued);
    log
}

/// Writes what waits, as the log's thread does.
fn written(log: &PurgeLog) {
    log.write_queued(&mut log.file()).unwrap();
}

fn checked(log: &PurgeLog) -> Checked {
    let (purge, removal) = log.position();
    Checked {
        log: log.id().unwrap(),
        purge,
        removal,
    }
}

/// Whether `/a` of the first route, which names blocks from 5 to 7, is still there.
fn is_there(log: &PurgeLog, checked: Checked) -> bool {
    let subject = PurgeSubject {
        key: b"",
        blocks: Some(BlockRange {
            tip: 9,
            lowest: 5,
            highest: 7,
        }),
        bodies: vec![b"a body with abc"],
    };
    log.may_hold(checked, &KEY) && log.holds(checked, (ONE, Some(TIP)), "/a?b=c", subject)
}

fn all_purges() -> Vec<(Purge, Option<MeaningDigest>, Option<MeaningDigest>, bool)> {
    let heights = |from| Purge::Heights {
        tip: Some(2),
        from,
        to: u32::MAX,
    };
    let path = |path: &str| Purge::Path {
        route: 7,
        path: path.into(),
    };
    let segment = |value: &str| Purge::Segment {
        route: 7,
        at: 0,
        value: value.into(),
    };
    let target = |target: &str| Purge::Target {
        route: 7,
        target: target.into(),
    };
    vec![
        (Purge::All, None, None, true),
        (Purge::Route(7), Some(ONE), None, true),
        (Purge::Route(7), Some(TWO), None, false),
        (target("/a?b=c"), Some(ONE), None, true),
        (target("/a?b=d"), Some(ONE), None, false),
        (target("/a?b=c"), Some(TWO), None, false),
        (segment("a"), Some(ONE), None, true),
        (segment("b"), Some(ONE), None, false),
        (path("/a"), Some(ONE), None, true),
        (path("/b"), Some(ONE), None, false),
        (heights(7), None, Some(TIP), true),
        (heights(8), None, Some(TIP), false),
        (heights(7), None, Some(TWO), false),
        (heights(7), None, None, true),
        (Purge::Text("abc".into()), None, None, true),
        (Purge::Text("abd".into()), None, None, false),
    ]
}

#[test]
fn purges_match_what_was_checked_before_them_now_and_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    for (purge, route, tip, matches) in all_purges() {
        let path = directory.path().join("purges");
        let _ = fs::remove_file(&path);
        let (log, begun) = PurgeLog::open(&path).unwrap();
        assert_eq!(begun, Begun::New);
        let before = checked(&log);
        assert!(is_there(&log, before));
        log.purge(1, LoggedPurge::new(&purge, route, tip));
        written(&log);
        let after = checked(&log);
        for log in [log, open(&path), open(&path)] {
            assert_eq!(is_there(&log, before), !matches, "{purge:?}");
            assert!(is_there(&log, after), "{purge:?}");
            assert_eq!(log.position(), (1, 0));
        }
    }
}

#[test]
fn the_routes_are_those_that_were_set_last() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    assert_eq!(log.routes(), []);
    for routes in [vec![ONE, TWO], vec![TWO]] {
        log.set_routes(routes.clone());
        written(&log);
        assert_eq!(log.routes(), routes);
    }
    assert_eq!(open(&path).routes(), [TWO]);
}

#[test]
fn a_removed_key_is_absent_until_it_is_stored_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    log.remove(0, [9; 16]);
    written(&log);
    assert!(is_there(&log, before), "another key");
    log.remove(1, KEY);
    written(&log);
    let after = checked(&log);
    for log in [log, open(&path)] {
        assert!(!is_there(&log, before));
        assert!(is_there(&log, after));
        assert_eq!(log.position(), (0, 2));
    }
}

#[test]
fn what_is_older_than_a_forgotten_purge_is_absent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    let other = || LoggedPurge::new(&Purge::Route(1), Some(TWO), None);
    let most = MOST_PURGES as u64;
    for number in 1..=most {
        log.purge(number, other());
    }
    assert!(is_there(&log, before) && log.may_keep(before, &KEY));
    log.purge(most + 1, other());
    written(&log);
    for log in [log, open(&path)] {
        assert!(!is_there(&log, before) && !log.may_keep(before, &KEY));
        assert!(is_there(&log, checked(&log)));
    }
}

#[test]
fn what_is_carried_out_is_forgotten_without_consequences() {
    let target = |number: u64| Purge::Target {
        route: 1,
        target: number.to_string().into(),
    };
    let removed = |number: u64| {
        let mut key = [7; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    };
    let (purges, removals) = (MOST_PURGES as u64, MOST_REMOVALS as u64);
    for is_carried_out in [true, false] {
        for most in [(purges, 0), (0, removals)] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("purges");
            let (log, _) = PurgeLog::open(&path).unwrap();
            let before = checked(&log);
            for number in 1..=most.0 {
                log.purge(number, LoggedPurge::new(&target(number), Some(TWO), None));
            }
            for number in 0..most.1 {
                log.remove(number, removed(number));
            }
            let (due, done) = log.due();
            assert_eq!(due.len() as u64, most.0 + most.1);
            assert!(due.iter().all(|(_, due)| due.applies_to(before)));
            assert!(!due.iter().any(|(_, due)| due.applies_to(checked(&log))));
            if is_carried_out {
                log.have_carried_out(done);
                assert!(log.due().0.is_empty());
            }
            assert!(is_there(&log, before) && log.may_keep(before, &KEY));
            // One more of each: the first is forgotten.
            log.purge(most.0 + 1, LoggedPurge::new(&target(0), Some(TWO), None));
            log.remove(most.1, NO_KEY);
            assert!(is_there(&log, before) || most.0 > 0, "no key is no removal");
            log.remove(most.1 + 1, [8; 16]);
            written(&log);
            assert!(!log.may_keep(before, &KEY), "it is not removed later");
            for log in [log, open(&path), open(&path)] {
                assert_eq!(is_there(&log, before), is_carried_out, "{most:?}");
                assert!(is_there(&log, checked(&log)));
                assert_eq!(log.due().0.len() == 2, is_carried_out);
            }
        }
    }
}

#[test]
fn every_damage_of_the_file_makes_all_absent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    for (number, (purge, route, tip, _)) in (1..).zip(all_purges()) {
        log.purge(number, LoggedPurge::new(&purge, route, tip));
    }
    log.remove(0, KEY);
    log.have_carried_out(log.due().1);
    let after = checked(&log);
    written(&log);
    drop(log);
    let whole = fs::read(&path).unwrap();
    for len in 0..whole.len() {
        assert!(file::parse(&whole[..len]).is_err(), "{len} bytes");
    }
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(file::parse(&flipped).is_err(), "a flip at {bit}");
    }
    for bytes in [&whole[..whole.len() - 1], b"", &[&whole[..], b"x"].concat()] {
        fs::write(&path, bytes).unwrap();
        let (log, begun) = PurgeLog::open(&path).unwrap();
        assert!(matches!(begun, Begun::Unreadable(_)), "{begun:?}");
        assert!(!is_there(&log, before) && !is_there(&log, after));
        assert!(is_there(&log, checked(&log)), "it can be used");
    }
}

#[test]
fn what_is_recorded_while_a_new_file_is_written_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    log.discard(&"it is a test");
    assert!(log.maintain().unwrap());
    let before = checked(&log);
    log.remove(0, KEY);
    written(&log);
    for log in [log, open(&path)] {
        assert!(!is_there(&log, before));
    }
}

#[test]
fn a_log_that_has_grown_is_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    let mut number = 0;
    while log.len() <= MOST_BYTES {
        log.remove(number, [8; 16]);
        number += 1;
        if number % 1000 == 0 {
            written(&log);
        }
    }
    // While there is no room for another file, the one that there is goes on.
    let new = path.with_extension("new");
    fs::create_dir(&new).unwrap();
    log.remove(number, [9; 16]);
    number += 1;
    assert!(log.maintain().is_err());
    assert!(is_there(&log, before) && log.len() > MOST_BYTES);
    fs::remove_dir(&new).unwrap();
    log.remove(number, [9; 16]);
    number += 1;
    assert!(!log.maintain().unwrap());
    assert!(log.len() < MOST_BYTES / 2, "{}", log.len());
    log.remove(number, KEY);
    written(&log);
    for log in [log, open(&path)] {
        assert_eq!(log.position(), (0, number + 1));
        assert!(!is_there(&log, before) && is_there(&log, checked(&log)));
    }
}

#[test]
fn the_seeds_of_the_fuzz_target_are_a_log_and_a_torn_one() {
    let seed = include_bytes!("../../../fuzz/corpus/purge_log/records");
    assert!(parse_any(seed));
    let torn = include_bytes!("../../../fuzz/corpus/purge_log/torn");
    assert!(!parse_any(torn));
}

/// A log, and the thread that writes it.
fn run(path: &Path) -> (Arc<PurgeLog>, std::thread::JoinHandle<()>) {
    let log = Arc::new(PurgeLog::open(path).unwrap().0);
    let own = log.clone();
    let thread = std::thread::spawn(move || own.run(|error| panic!("{error}")));
    (log, thread)
}

/// Holds the file, as it is held while the disk hangs, until the sender is dropped.
fn hang(log: &Arc<PurgeLog>) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel();
    let (hold, is_held) = mpsc::channel();
    let log = log.clone();
    std::thread::spawn(move || {
        let _file = log.file();
        hold.send(()).unwrap();
        let _dropped = released.recv();
    });
    is_held.recv().unwrap();
    release
}

#[tokio::test]
async fn answers_wait_until_their_purge_is_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, thread) = run(&path);
    let before = checked(&log);
    assert!(log.recorded().await, "nothing waits to be written");
    for number in 0..1000 {
        log.remove(number, KEY);
        assert!(log.recorded().await);
        // Of a process that is killed now.
        let (_, records) = file::parse(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(records.next_removal, number + 1);
    }
    log.remove(1000, [8; 16]);
    log.close();
    thread.join().unwrap();
    let log = open(&path);
    assert_eq!(log.position(), (0, 1001), "the last is written as well");
    assert!(!is_there(&log, before));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_disk_that_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, thread) = run(&path);
    let before = checked(&log);
    let release = hang(&log);
    assert_eq!(log.position(), (0, 0));
    assert!(is_there(&log, before) && log.may_keep(before, &KEY));
    log.set_routes(vec![ONE]);
    log.purge(1, LoggedPurge::new(&Purge::Route(1), Some(TWO), None));
    log.remove(0, KEY);
    log.have_carried_out(log.due().1);
    assert_eq!(log.routes(), [ONE]);
    assert!(!is_there(&log, before), "they apply at once");
    assert_eq!(log.position(), (1, 1));
    let begin = tokio::time::Instant::now();
    assert!(!log.recorded().await);
    assert_eq!(begin.elapsed(), PATIENCE);
    log.remove(1, KEY);
    assert!(!log.recorded().await);
    assert_eq!(begin.elapsed(), PATIENCE, "only the first waits");
    assert!(log.unrecorded() >= 4);
    drop(release);
    log.close();
    thread.join().unwrap();
    assert_eq!(log.unrecorded(), 0);
    assert!(log.recorded().await);
    assert_eq!(open(&path).position(), (1, 2));
    // A record is missing: that is known at once, whatever the disk does.
    let _release = hang(&log);
    log.discard(&"it is a test");
    assert_eq!(log.id(), None);
}

#[test]
fn blocks_that_were_written_before_a_reorg_are_cut_off_at_its_height() {
    let directory = tempfile::tempdir().unwrap();
    let (log, _) = PurgeLog::open(&directory.path().join("purges")).unwrap();
    let (tip, other, to) = (ONE, TWO, u32::MAX);
    let reorg = |number: u64, digest: MeaningDigest, from: u32| {
        let tip = Some(0);
        let heights = Purge::Heights { tip, from, to };
        log.purge(number, LoggedPurge::new(&heights, None, Some(digest)));
    };
    let before = log.position().0;
    reorg(before + 1, tip, 850_003);
    reorg(before + 2, other, 100);
    log.purge(before + 3, LoggedPurge::new(&Purge::Route(0), None, None));
    reorg(before + 4, tip, 850_010);
    assert_eq!(log.reorg_since(before, tip), Some(850_003));
    assert_eq!(log.reorg_since(before + 1, tip), Some(850_010));
    assert_eq!(log.reorg_since(before + 4, tip), None);
    assert_eq!(log.reorg_since(before + 5, tip), Some(0), "of another log");
}
