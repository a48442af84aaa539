//! Directories that are used or refused, and databases that are begun anew.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// A directory, and a clock that stands.
pub(super) struct Place {
    pub(super) directory: TempDir,
    pub(super) clock: Clock,
}

impl Place {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
        Self {
            directory,
            clock: Clock::manual(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            path: self.path().into(),
            max_bytes: 1 << 20,
        }
    }

    pub(super) fn open(&self) -> State {
        State::open(&self.settings(), &self.clock).unwrap()
    }

    /// A copy of all files: what a process leaves that is killed now.
    pub(super) fn as_killed(&self) -> Self {
        let copy = Self {
            clock: self.clock.clone(),
            ..Self::new()
        };
        for entry in fs::read_dir(self.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        copy
    }

    /// Waits until nobody uses the directory.
    pub(super) fn is_closed(&self) -> directory::Lock {
        directory::open(self.path(), PATIENCE).unwrap()
    }

    /// Changes a database, once it is closed.
    pub(super) fn change(&self, name: &str, sql: &str) {
        let _closed = self.is_closed();
        let database = rusqlite::Connection::open(self.path().join(name)).unwrap();
        database.execute_batch(sql).unwrap();
    }
}

fn refused(place: &Place, settings: &Settings) -> String {
    match State::open_within(settings, &place.clock, Duration::ZERO) {
        Ok(_) => "opened".to_owned(),
        Err(error) => {
            let path = place.path().display().to_string();
            error.to_string().replace(&path, "DIR")
        }
    }
}

#[test]
fn a_new_directory_is_closed_to_others() {
    let place = Place::new();
    let path = place.path().join("new");
    let settings = Settings {
        path: path.clone(),
        ..place.settings()
    };
    let _state = State::open(&settings, &place.clock).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&path), 0o700);
    for name in [
        "lock",
        "answers.db",
        "spent.db",
        "answers.db-wal",
        "spent.db-wal",
    ] {
        assert_eq!(mode(&path.join(name)), 0o600, "{name}");
    }
}

/// What is made in a directory, and how it is refused.
#[test]
fn what_others_have_access_to_is_refused() {
    type Make = fn(&Path);
    let cases: [(&str, Make, &str); 7] = [
        (
            "a directory that others can read",
            |path| fs::set_permissions(path, Permissions::from_mode(0o705)).unwrap(),
            "DIR has mode 0705; allowed is a mode that gives no access to group and others: chmod go= DIR",
        ),
        (
            "a directory that its group can write",
            |path| fs::set_permissions(path, Permissions::from_mode(0o720)).unwrap(),
            "DIR has mode 0720; allowed is a mode that gives no access to group and others: chmod go= DIR",
        ),
        (
            "a file that others can read",
            |path| {
                fs::write(path.join("spent.db"), "").unwrap();
                fs::set_permissions(path.join("spent.db"), Permissions::from_mode(0o604)).unwrap();
            },
            "DIR/spent.db has mode 0604; allowed is a mode that gives no access to group and others: chmod go= DIR/spent.db",
        ),
        (
            "a link in place of a file",
            |path| symlink("/dev/null", path.join("answers.db")).unwrap(),
            "DIR/answers.db is a symbolic link; allowed is a file: remove it, or set another state.path",
        ),
        (
            "a directory in place of a file",
            |path| fs::create_dir(path.join("answers.db")).unwrap(),
            "DIR/answers.db is a directory; allowed is a file: remove it, or set another state.path",
        ),
        (
            "another program's file",
            |path| fs::write(path.join("x"), "").unwrap(),
            "opened",
        ),
        ("nothing", |_| {}, "opened"),
    ];
    for (what, make, expected) in cases {
        let place = Place::new();
        make(place.path());
        assert_eq!(refused(&place, &place.settings()), expected, "{what}");
    }
}

#[test]
fn what_is_no_directory_is_refused() {
    let place = Place::new();
    fs::write(place.path().join("file"), "").unwrap();
    for (name, expected) in [
        (
            "file",
            "DIR/file is a file; allowed is a directory, which need not exist: remove it, or set another state.path",
        ),
        (
            "file/new",
            "state.path DIR/file/new: the directory cannot be created: Not a directory (os error 20); allowed is a directory that exists, or a new one in a directory to which ordgate can write",
        ),
        (
            "no/new",
            "state.path DIR/no/new: the directory cannot be created: No such file or directory (os error 2); allowed is a directory that exists, or a new one in a directory to which ordgate can write",
        ),
    ] {
        let settings = Settings {
            path: place.path().join(name),
            ..place.settings()
        };
        assert_eq!(refused(&place, &settings), expected);
    }
}

#[test]
fn another_users_directory_is_refused() {
    let place = Place::new();
    let found = fs::metadata(place.path()).unwrap();
    use std::os::unix::fs::MetadataExt;
    let user = found.uid();
    let checked = directory::check(place.path(), &found, true, user + 1);
    let path = place.path().display();
    assert_eq!(
        checked.unwrap_err().to_string(),
        format!(
            "{path} belongs to user {user}, and ordgate runs as user {other}; allowed are a directory and files of that user: chown -R {other} {path}, or set another state.path",
            other = user + 1
        )
    );
}

#[test]
fn one_process_uses_a_directory() {
    let place = Place::new();
    let state = place.open();
    let in_use = "DIR/lock is in use by another process; allowed is one process for each directory: stop the other one, or set another state.path";
    assert_eq!(refused(&place, &place.settings()), in_use);
    // Each part keeps the lock.
    let State { answers, spent } = state;
    drop(answers);
    assert_eq!(refused(&place, &place.settings()), in_use);
    // It waits for the threads, which close the databases.
    drop(spent);
    place.open();
}
