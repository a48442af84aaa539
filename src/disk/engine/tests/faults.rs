//! What the file system refuses, and files that are not the engine's.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::super::{Engine, EngineError};
use super::{SMALL, has, key, open, put, value};

/// The environment's variable with which a test runs itself in a process of its own.
pub(super) const DIRECTORY: &str = "ORDGATE_ENGINE_TEST_DIRECTORY";

#[test]
fn errors_say_what_kind_they_are() {
    let kind = |kind: io::ErrorKind| EngineError::new("write", Path::new("/x"), kind.into());
    for full in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
        assert!(matches!(kind(full), EngineError::Full { .. }));
    }
    for refused in [
        io::ErrorKind::ReadOnlyFilesystem,
        io::ErrorKind::PermissionDenied,
    ] {
        assert!(matches!(kind(refused), EngineError::NotWritable { .. }));
    }
    // EIO.
    let error = EngineError::new("read", Path::new("/x"), io::Error::from_raw_os_error(5));
    assert!(matches!(error, EngineError::Io { .. }));
    assert!(error.to_string().starts_with("cannot read /x: "), "{error}");
}

#[test]
fn a_directory_that_cannot_be_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [
        file.clone(),
        file.join("below"),
        directory.path().join("a/b"),
    ] {
        let refused = Engine::open(&path, SMALL).err();
        assert!(
            matches!(refused, Some(EngineError::Io { .. })),
            "{path:?}: {refused:?}"
        );
    }
}

#[test]
fn files_of_others_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let names = [
        "notes.txt",
        "1.segment",
        "000000000000000G.segment",
        "0000000000000001.segment.bak",
    ];
    for name in names {
        fs::write(at(name), "mine").unwrap();
    }
    fs::create_dir(at("0000000000000002.segment")).unwrap();
    std::os::unix::fs::symlink(at("notes.txt"), at("0000000000000003.open")).unwrap();
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!((recovered.foreign, recovered.discarded), (6, 0));
    assert!(recovered.foreign_name.is_some());
    assert_eq!(engine.bytes(), 0);
    (0..1_000).for_each(|number| put(&engine, number));
    drop(engine);
    assert_eq!(open(directory.path(), SMALL).1.foreign, 6);
    for name in names {
        assert_eq!(fs::read(at(name)).unwrap(), b"mine");
    }
}

#[test]
fn files_of_another_version_are_deleted_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    put(&engine, 1);
    drop(engine);
    let file = directory.path().join("0000000000000000.open");
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] += 1;
    fs::write(&file, bytes).unwrap();
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!((recovered.discarded, recovered.other_version), (1, 1));
    assert!(!has(&engine, 1) && !file.exists());
    put(&engine, 2);
    assert!(has(&engine, 2));
}

#[test]
fn deleted_while_running_gives_errors_and_no_panic() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let (engine, _) = open(&state, SMALL);
    (0..100).for_each(|number| put(&engine, number));
    fs::remove_dir_all(&state).unwrap();
    let mut refused = None;
    for number in 100..400 {
        refused = refused.or(engine.put_batch(&[(key(number), value(number))]).err());
    }
    assert!(
        matches!(refused, Some(EngineError::Io { .. })),
        "{refused:?}"
    );
    // What is open can still be read.
    assert!((0..400).any(|number| has(&engine, number)));
    engine.remove(&key(1)).unwrap();
    assert!(!has(&engine, 1));
    // Once the directory is back, so is the engine.
    fs::create_dir(&state).unwrap();
    put(&engine, 500);
    assert!(has(&engine, 500));
    drop(engine);
    assert!(has(&open(&state, SMALL).0, 500));
}

#[test]
fn cut_while_running_is_absent_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, _) = open(directory.path(), SMALL);
    put(&engine, 1);
    let file = directory.path().join("0000000000000000.open");
    fs::OpenOptions::new()
        .write(true)
        .open(file)
        .unwrap()
        .set_len(50)
        .unwrap();
    assert!(!has(&engine, 1));
    assert_eq!(engine.unreadable(), 1);
}

/// The largest file that the process of `a_full_disk_is_an_error` may write.
const LIMIT: u64 = 32 << 10;

#[test]
fn a_full_disk_is_an_error_and_what_is_stored_stays() {
    let directory = tempfile::tempdir().unwrap();
    // The shell's limit for files stands for a full disk: writes fail halfway.
    let output = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f \"$1\"; shift; exec \"$@\"",
            "sh",
        ])
        .arg((LIMIT / 512).to_string())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .arg("disk::engine::tests::faults::writes_to_a_full_disk")
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    // Without the limit, it goes on where it was.
    let (engine, recovered) = open(directory.path(), SMALL);
    assert_eq!(recovered.discarded, 0);
    assert!(has(&engine, 0));
    (1_000..1_100).for_each(|number| put(&engine, number));
    assert!((1_000..1_100).all(|number| has(&engine, number)));
}

#[test]
#[ignore = "runs in the process that another test starts"]
fn writes_to_a_full_disk() {
    let directory = std::env::var_os(DIRECTORY).expect("the test that starts this sets it");
    let (engine, _) = open(directory.as_ref(), SMALL);
    let mut stored = Vec::new();
    let mut refusals = 0;
    for number in 0..200 {
        match engine.put_batch(&[(key(number), value(number))]) {
            Ok(()) => stored.push(number),
            Err(EngineError::Full { .. }) => refusals += 1,
            Err(other) => panic!("{other}"),
        }
    }
    // Smaller values still fit after larger ones did not.
    assert!(refusals > 100 && stored.len() > 5, "{refusals} {stored:?}");
    assert!(stored.iter().all(|number| has(&engine, *number)));
    engine.remove(&key(stored[1])).unwrap();
    assert!(!has(&engine, stored[1]));
    let file = fs::metadata(Path::new(&directory).join("0000000000000000.open")).unwrap();
    assert!(file.len() <= LIMIT);
}

/// Whether this machine lets a test mount a file system of its own.
fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-rm", "true"]).status();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!("not run: it needs `unshare -rm`");
    }
    can
}

/// With a file system of its own, the test runs in another process.
#[test]
fn a_full_file_system_is_an_error_and_what_is_stored_stays() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return fill(directory.as_ref());
    }
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=256k none "$0" && exec "$@""#;
    let name =
        "disk::engine::tests::faults::a_full_file_system_is_an_error_and_what_is_stored_stays";
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads=1", name])
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Writes more than the file system has room for, which is less than the engine's bound.
fn fill(directory: &Path) {
    let at = |name: &str| directory.join(name);
    fs::write(at("filler"), vec![1; 100 << 10]).unwrap();
    let (engine, _) = open(&at("engine"), SMALL);
    let (mut stored, mut refusals) = (Vec::new(), 0);
    for number in 0..400 {
        match engine.put_batch(&[(key(number), value(number))]) {
            Ok(()) => stored.push(number),
            Err(EngineError::Full { .. }) => refusals += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refusals > 100 && stored.len() > 20, "{refusals} {stored:?}");
    assert!(stored.iter().all(|number| has(&engine, *number)));
    // What is removed needs no room.
    let removed = stored.remove(1);
    engine.remove(&key(removed)).unwrap();
    drop(engine);
    let (engine, recovered) = open(&at("engine"), SMALL);
    assert_eq!(recovered.discarded, 0);
    assert!(stored.iter().all(|number| has(&engine, *number)) && !has(&engine, removed));
    fs::remove_file(at("filler")).unwrap();
    (1_000..1_020).for_each(|number| put(&engine, number));
    drop(engine);
    let (engine, _) = open(&at("engine"), SMALL);
    assert!((1_000..1_020).all(|number| has(&engine, number)));
    assert!(!has(&engine, removed));
}
