//! The purge log: what it forgets, and what is absent because of it.

use std::fs;

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
        assert!(matches!(
            log.purge(1, LoggedPurge::new(&purge, route, tip)),
            Written::Recorded
        ));
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
        assert!(matches!(log.set_routes(routes.clone()), Written::Recorded));
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
    assert!(matches!(log.remove(0, [9; 16]), Written::Recorded));
    assert!(is_there(&log, before), "another key");
    assert!(matches!(log.remove(1, KEY), Written::Recorded));
    let after = checked(&log);
    for log in [log, open(&path)] {
        assert!(!is_there(&log, before));
        assert!(is_there(&log, after));
        assert_eq!(log.position(), (0, 2));
    }
}

#[test]
fn what_is_older_than_the_oldest_record_is_absent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    let other = || LoggedPurge::new(&Purge::Route(1), Some(TWO), None);
    let most = MOST_PURGES as u64;
    for number in 1..=most {
        assert!(matches!(log.purge(number, other()), Written::Recorded));
    }
    assert!(is_there(&log, before));
    log.purge(most + 1, other());
    let removed = |number: u64| {
        let mut key = [7; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    };
    for log in [log, open(&path)] {
        assert!(!is_there(&log, before));
        let before = checked(&log);
        assert!(is_there(&log, before));
        let (_, next) = log.position();
        let most = MOST_REMOVALS as u64;
        for number in next..next + most {
            assert!(matches!(
                log.remove(number, removed(number)),
                Written::Recorded
            ));
        }
        log.remove(next + most, NO_KEY);
        assert!(is_there(&log, before), "no key is no removal");
        log.remove(next + most + 1, removed(next + most));
        assert!(!is_there(&log, before));
        assert!(is_there(&log, checked(&log)));
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
    let after = checked(&log);
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
fn a_file_that_was_removed_is_begun_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    log.purge(1, LoggedPurge::new(&Purge::All, None, None));
    let before = checked(&log);
    assert!(!log.maintain().unwrap());
    assert!(is_there(&log, before));
    fs::remove_file(&path).unwrap();
    assert!(log.maintain().unwrap());
    assert!(!is_there(&log, before));
    assert_eq!(log.position(), (1, 0), "the numbers continue");
    assert!(is_there(&open(&path), checked(&log)));
}

#[test]
fn where_a_purge_cannot_be_written_all_is_absent_until_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    // A handle that cannot be written stands for a device that cannot.
    let broken = fs::File::open(&path).unwrap();
    log.state().file.as_mut().unwrap().set_handle(broken);
    let purge = |number| log.purge(number, LoggedPurge::new(&Purge::All, None, None));
    assert!(matches!(purge(1), Written::Lost(_)));
    assert!(matches!(purge(2), Written::LostBefore), "one fault");
    assert_eq!(log.id(), None);
    assert!(!is_there(&log, before));
    assert!(log.sync().is_err());
    assert!(!path.exists(), "no later run believes it");
    assert!(log.maintain().unwrap());
    assert!(!is_there(&log, before));
    assert!(is_there(&open(&path), checked(&log)));
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
    }
    assert!(!log.maintain().unwrap());
    assert!(log.len() < MOST_BYTES / 2, "{}", log.len());
    log.remove(number, KEY);
    for log in [log, open(&path)] {
        assert_eq!(log.position(), (0, number + 1));
        assert!(!is_there(&log, before) && is_there(&log, checked(&log)));
    }
}

#[test]
fn a_purge_is_not_written_to_a_file_that_was_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    let failed = || Err(io::Error::other("it is not durable"));
    let mut state = log.state();
    assert!(state.change_file(&log, failed()).is_err());
    drop(state);
    assert!(is_there(&log, before), "nothing was replaced");
    let mut state = log.state();
    drop(LogFile::create(&path, state.id, &state.records).unwrap());
    assert!(state.change_file(&log, failed()).is_err());
    drop(state);
    assert_eq!(log.id(), None);
    assert!(log.sync().is_err(), "no purge is acknowledged");
    assert!(!path.exists(), "no later run reads it");
}

#[test]
fn the_seeds_of_the_fuzz_target_are_a_log_and_a_torn_one() {
    let seed = include_bytes!("../../../fuzz/corpus/purge_log/records");
    assert!(parse_any(seed));
    let torn = include_bytes!("../../../fuzz/corpus/purge_log/torn");
    assert!(!parse_any(torn));
}

#[test]
fn nobody_waits_for_the_disk_to_ask_where_the_log_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    log.remove(4, KEY);
    // As it is held while the disk hangs.
    let state = log.state();
    assert_eq!(log.id(), Some(state.id));
    assert_eq!(log.position(), (0, 5));
    assert_eq!(log.len(), state.file.as_ref().unwrap().len());
    drop(state);
    log.discard();
    assert_eq!((log.id(), log.len()), (None, 0));
    log.remove(5, KEY);
    assert_eq!(log.position(), (0, 6), "the numbers continue");
}
