//! Files that cannot be written, and that are gone.

use super::*;

/// A handle that cannot be written stands for a device that cannot.
fn break_file(log: &PurgeLog) {
    let broken = fs::File::open(&log.path).unwrap();
    log.file().as_mut().unwrap().set_handle(broken);
}

#[test]
fn a_file_that_was_removed_is_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    log.purge(1, LoggedPurge::new(&Purge::All, None, None));
    let before = checked(&log);
    assert!(!log.maintain().unwrap());
    assert!(is_there(&log, before));
    for sync in [false, true] {
        let away = directory.path().join("away");
        fs::rename(&path, &away).unwrap();
        match sync {
            true => log.sync().unwrap(),
            false => assert!(!log.maintain().unwrap()),
        }
        assert_eq!(fs::read(&away).unwrap(), b"", "no run believes that one");
        assert!(is_there(&log, before));
        let next = open(&path);
        assert!(is_there(&next, before));
        assert_eq!(next.position(), (1, 0));
        // That one is the log's own from now on.
        log.maintain().unwrap();
    }
}

#[test]
fn where_a_purge_cannot_be_written_no_later_run_uses_anything_until_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    break_file(&log);
    log.purge(1, LoggedPurge::new(&Purge::Route(1), Some(TWO), None));
    let write = || log.write_queued(&mut log.file());
    assert!(write().is_err());
    assert!(is_there(&log, before), "this run knows the purge");
    assert!(log.sync().is_err());
    assert!(!path.exists(), "no later run believes it");
    log.make_durable().unwrap();
    log.purge(2, LoggedPurge::new(&Purge::Route(1), Some(TWO), None));
    log.remove(0, KEY);
    assert!(write().is_ok(), "one fault");
    assert_eq!(log.unrecorded(), 0);
    assert!(!log.maintain().unwrap());
    let after = checked(&log);
    for log in [log, open(&path)] {
        assert!(is_there(&log, after) && !is_there(&log, before));
        assert_eq!(log.position(), (2, 1));
    }
}

#[test]
fn what_is_kept_was_checked_against_durable_records_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let durable = || read(&log.state).durable;
    assert_eq!(durable(), (0, 0));
    for number in 1..4 {
        log.purge(number, LoggedPurge::new(&Purge::All, None, None));
        log.remove(number - 1, KEY);
        written(&log);
        assert_eq!(
            durable(),
            (number - 1, number - 1),
            "a kill alone loses nothing"
        );
        log.make_durable().unwrap();
        assert_eq!(durable(), (number, number));
    }
    // Nor does a file that is written anew lack any.
    log.purge(4, LoggedPurge::new(&Purge::All, None, None));
    fs::remove_file(&path).unwrap();
    log.maintain().unwrap();
    assert_eq!(durable(), (4, 3));
}

#[test]
fn a_file_that_cannot_be_removed_is_removed_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    break_file(&log);
    // A directory in its place stands for a file system that has become read-only.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    log.purge(1, LoggedPurge::new(&Purge::All, None, None));
    assert!(log.write_queued(&mut log.file()).is_err());
    assert_eq!(log.unrecorded(), 1);
    let after = checked(&log);
    assert!(log.may_hold(after, &KEY) && !log.may_keep(after, &KEY));
    assert!(log.maintain().is_err());
    log.purge(2, LoggedPurge::new(&Purge::All, None, None));
    written(&log);
    assert_eq!(log.unrecorded(), 2, "the old file may be back");
    fs::remove_dir(&path).unwrap();
    assert!(!log.maintain().unwrap());
    assert_eq!(log.unrecorded(), 0);
    assert!(is_there(&open(&path), checked(&log)));
}

#[test]
fn where_too_much_waits_to_be_written_the_file_is_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let before = checked(&log);
    let mut number = 0;
    while !read(&log.state).is_behind {
        log.remove(number, [8; 16]);
        number += 1;
    }
    log.remove(number, KEY);
    let after = checked(&log);
    assert!(read(&log.state).queued.is_empty());
    assert!(log.unrecorded() > 0);
    written(&log);
    assert_eq!(log.unrecorded(), 0);
    log.remove(number + 1, [9; 16]);
    written(&log);
    for log in [log, open(&path)] {
        assert!(is_there(&log, after) && !is_there(&log, before));
        assert_eq!(log.position(), (0, number + 2));
    }
}

#[test]
fn a_purge_is_not_written_to_a_file_that_may_have_been_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("purges");
    let (log, _) = PurgeLog::open(&path).unwrap();
    let bytes = file::to_bytes(log.id().unwrap(), &read(&log.state).records);
    // It is in place, but its directory could not be made durable.
    drop(LogFile::create(&path, bytes).unwrap());
    let failed = Err(io::Error::other("it is not durable"));
    assert!(
        log.change_file(&mut log.file(), failed, (0, (0, 0)))
            .is_err()
    );
    assert!(log.sync().is_err(), "no purge is acknowledged");
    assert!(!path.exists(), "no later run reads it");
}
