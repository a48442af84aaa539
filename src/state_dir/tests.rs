//! Opening, refusing and locking directories.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn refused(path: &Path) -> String {
    let checked = StateDir::check(path).unwrap_err().to_string();
    let opened = StateDir::open(path).unwrap_err().to_string();
    assert_eq!(checked, opened, "check refuses what open refuses");
    let begins = format!("state.path {}: ", path.display());
    opened.strip_prefix(&begins).unwrap().to_owned()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_is_created_and_found_again() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("state");
    StateDir::check(&path).unwrap();
    assert!(!path.exists(), "check creates nothing");
    let first = StateDir::open(&path).unwrap().unwrap();
    assert!(!first.was_used());
    let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode();
    assert_eq!(mode("") & 0o7777, 0o700);
    for file in [LOCK, format::FILE] {
        assert_eq!(mode(file) & 0o7777, 0o600, "{file}");
    }
    let salt = first.salt;
    drop(first);
    let again = StateDir::open(&path).unwrap().unwrap();
    assert!(again.was_used());
    assert_eq!(again.salt, salt);
}

#[test]
fn a_copy_has_another_identity() {
    let parent = tempfile::tempdir().unwrap();
    let (path, copy) = (parent.path().join("state"), parent.path().join("copy"));
    let first = StateDir::open(&path).unwrap().unwrap();
    let identity = first.identity();
    assert_eq!(identity.map(|identity| identity.boot), boot_id());
    fs::create_dir(&copy).unwrap();
    set_mode(&copy, 0o700);
    for file in [LOCK, format::FILE] {
        fs::copy(path.join(file), copy.join(file)).unwrap();
    }
    let copied = StateDir::open(&copy).unwrap().unwrap();
    assert_eq!(copied.salt, first.salt);
    drop(first);
    let again = StateDir::open(&path).unwrap().unwrap();
    assert_eq!(again.identity(), identity);
    if identity.is_some() {
        assert_ne!(copied.identity(), identity);
    }
}

#[test]
fn a_second_process_gets_none() {
    let directory = tempfile::tempdir().unwrap();
    let first = StateDir::open(directory.path()).unwrap();
    assert!(first.is_some());
    // A lock belongs to an open file, so one process can be two here.
    assert!(StateDir::open(directory.path()).unwrap().is_none());
    StateDir::check(directory.path()).unwrap();
    drop(first);
    assert!(StateDir::open(directory.path()).unwrap().is_some());
}

#[test]
fn a_process_that_is_about_to_end_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings {
        path: Some(directory.path().into()),
        max_bytes: 1 << 30,
        min_freshness: Duration::ZERO,
    };
    let path = directory.path();
    let mut first = StateDir::open(path).unwrap();
    let beside = OpenedState::open(&settings, Duration::ZERO).unwrap();
    assert_eq!(beside.name(), "in use by another process");
    assert!(beside.open_late().unwrap().is_none());
    let (mut waited, patience) = (Duration::ZERO, Duration::from_secs(3600));
    let opened = StateDir::open_within(path, patience, |time| waited += time).unwrap();
    assert!(opened.is_none());
    assert_eq!(waited, MOST_PATIENCE);
    let mut waits = 0;
    let ends = |_| {
        waits += 1;
        first = first.take().filter(|_| waits < 3);
    };
    let second = StateDir::open_within(path, patience, ends)
        .unwrap()
        .unwrap();
    assert_eq!(waits, 3);
    assert!(second.was_shared());
    second.forget_shared().unwrap();
    second.forget_shared().unwrap();
    let shared = path.join(beside::SHARED);
    assert!(!fs::exists(&shared).unwrap());
    // What still spends beside says so again.
    assert!(beside.open_late().unwrap().is_none());
    assert!(fs::exists(&shared).unwrap());
    beside.mark_purged().unwrap();
    assert!(second.was_purged().unwrap());
    second.forget_purged().unwrap();
    assert!(!second.was_purged().unwrap());
}

#[test]
fn a_process_beside_another_uses_the_directory_once_that_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let settings = Settings {
        path: Some(path.into()),
        max_bytes: 1 << 30,
        min_freshness: Duration::ZERO,
    };
    let beside = || OpenedState::open(&settings, Duration::ZERO).unwrap();
    let first = StateDir::open(path).unwrap();
    let second = beside();
    assert!(second.directory().is_none());
    drop(first);
    let opened = second.open_late().unwrap().unwrap();
    assert!(!opened.was_shared(), "nobody else has spent");
    assert!(opened.was_beside());
    opened.forget_shared().unwrap();
    second.set(opened);
    assert_eq!(second.name(), "open");
    assert!(second.open_late().unwrap().is_none());
    // One of two that were beside it does not know what the other has spent.
    let (third, fourth) = (beside(), beside());
    drop(second);
    let opened = third.open_late().unwrap().unwrap();
    assert!(opened.was_shared());
    third.set(opened);
    drop(third);
    // Nor is anything known where the directory was removed meanwhile.
    fs::remove_dir_all(path).unwrap();
    assert!(fourth.open_late().unwrap().is_none());
    fs::create_dir(path).unwrap();
    fs::write(path.join(LOCK), "").unwrap();
    let opened = fourth.open_late().unwrap().unwrap();
    assert!(!opened.was_used() && opened.was_shared());
}

#[test]
fn what_is_no_directory_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let expected = "it is a file; allowed is a directory, which need not exist";
    assert_eq!(refused(file.path()), expected);
    let expected = "it is a device; allowed is a directory, which need not exist";
    assert_eq!(refused(Path::new("/dev/null")), expected);
    let within = refused(&file.path().join("state"));
    assert!(within.contains("is no directory"), "{within}");
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for (mode, who) in [
        (0o770, "its group can write to it"),
        (0o720, "its group can write to it"),
        (0o702, "everyone can write to it"),
        (0o1777, "everyone can write to it"),
    ] {
        set_mode(path, mode);
        let expected = format!(
            "it has mode {mode:04o}, and so {who}; allowed are modes that let nobody but its owner write, such as 0700: chmod 700 {}",
            path.display()
        );
        assert_eq!(refused(path), expected);
    }
    for mode in [0o700, 0o750, 0o755] {
        set_mode(path, mode);
        assert!(StateDir::open(path).unwrap().is_some(), "{mode:o}");
    }
}

#[test]
fn a_directory_whose_parent_is_missing_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let missing = parent.path().join("a");
    let text = refused(&missing.join("b"));
    let expected = format!("create {} first", missing.display());
    assert!(text.ends_with(&expected), "{text}");
}

#[test]
fn a_directory_of_another_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    StateDir::check(directory.path()).unwrap();
    fs::write(directory.path().join("letters.txt"), "dear").unwrap();
    let text = refused(directory.path());
    assert!(
        text.starts_with("it has \"letters.txt\" and no file of ordgate's; allowed is an empty"),
        "{text}"
    );
    assert!(!directory.path().join(LOCK).exists(), "it is left alone");
}

#[test]
fn a_damaged_format_is_written_anew_and_files_of_another_version_are_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let salt = StateDir::open(path).unwrap().unwrap().salt;
    let file = path.join(format::FILE);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    fs::write(path.join(SPENT), "pages with names under the lost salt").unwrap();
    StateDir::check(path).unwrap();
    assert!(path.join(SPENT).exists(), "a check changes nothing");
    let opened = StateDir::open(path).unwrap().unwrap();
    assert!(opened.was_used(), "what was spent before is not known");
    assert_ne!(opened.salt, salt);
    assert!(!path.join(SPENT).exists(), "it would seem to know the keys");
    let salt = opened.salt;
    fs::write(&file, format::of_version(2)).unwrap();
    let leftovers = [path.join("spent"), path.join("budget").join("a")];
    fs::create_dir(path.join("budget")).unwrap();
    for leftover in &leftovers {
        fs::write(leftover, "of version 2").unwrap();
    }
    drop(opened);
    StateDir::check(path).unwrap();
    assert!(
        leftovers.iter().all(|file| file.exists()),
        "a check changes nothing"
    );
    let opened = StateDir::open(path).unwrap().unwrap();
    assert!(opened.was_used(), "what was spent before is not known");
    assert_ne!(opened.salt, salt);
    let mut left: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.sort_unstable();
    assert_eq!(left, [format::FILE, LOCK]);
}

#[test]
fn names_depend_on_the_directory_and_on_each_part() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [one, other] =
        [&one, &other].map(|directory| StateDir::open(directory.path()).unwrap().unwrap());
    assert_eq!(one.digest(&[b"key"]), one.digest(&[b"key"]));
    assert_ne!(one.digest(&[b"key"]), other.digest(&[b"key"]));
    assert_ne!(one.digest(&[b"ab", b"c"]), one.digest(&[b"a", b"bc"]));
}

#[test]
fn a_removed_directory_is_noticed() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("state");
    let opened = StateDir::open(&path).unwrap().unwrap();
    assert!(!opened.was_removed());
    fs::remove_dir_all(&path).unwrap();
    assert!(opened.was_removed());
    let other = StateDir::open(&path).unwrap();
    assert!(other.is_some() && opened.was_removed(), "it is another one");
}

#[test]
fn a_lost_format_is_like_a_damaged_one_where_other_files_are_ordgates() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let format = path.join(format::FILE);
    let write = |name: &str, text: &str| {
        let file = path.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    // The file, what it begins with, and whether that is ordgate's.
    for (name, begins, is_ours) in [
        ("spent", "ordspnh1", true),
        ("spent", "ordspnh9, of another version", true),
        ("spent", "dear", false),
        ("journal", "\0\0\0\x60 a checksum ordgate-journal-5", true),
        ("journal", "dear diary", false),
        ("answers/responses/000001.segment", "ordgseg\n", true),
        (
            "answers/purges",
            "\0\0\0\x60 a checksum ordgate-purges-1",
            true,
        ),
        ("answers/blocks-1", "ordgate-blocks-2", true),
        ("answers/1.txt", "42", false),
        ("letters.txt", "ordgseg\n", false),
    ] {
        write(name, begins);
        if is_ours {
            // Others are damaged, or of the user.
            write("answers/responses/000000.segment", "damaged");
            write("letters.txt", "dear");
            StateDir::check(path).unwrap();
            assert!(!format.exists(), "a check changes nothing");
            let opened = StateDir::open(path).unwrap().unwrap();
            assert!(opened.was_used(), "{name}: what was spent is not known");
            assert!(!path.join(SPENT).exists(), "it would seem to know the keys");
            assert!(name == SPENT || path.join(name).exists(), "{name} is kept");
            drop(opened);
            assert!(StateDir::open(path).unwrap().is_some());
        } else {
            let why = refused(path);
            assert!(why.contains("no file of ordgate's"), "{name}: {why}");
            assert!(path.join(name).exists());
        }
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap().path();
            match entry.is_dir() {
                true => fs::remove_dir_all(entry).unwrap(),
                false => fs::remove_file(entry).unwrap(),
            }
        }
    }
}
