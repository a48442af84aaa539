//! Directories that are used or refused.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tempfile::TempDir;

use super::*;

/// A directory, and a clock that stands.
pub(super) struct Place {
    pub(super) directory: TempDir,
    pub(super) clock: Clock,
}

/// What makes a database unusable, for [`Place::spoil`]: another content, or SQL.
pub(super) const UNUSABLE: [&str; 4] = [
    "",
    "a-text-and-no-database",
    "PRAGMA application_id = 1",
    "PRAGMA user_version = 9",
];

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
            match fs::copy(entry.path(), copy.path().join(entry.file_name())) {
                // The engine removes files of its own when it has written them into others.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                copied => drop(copied.unwrap()),
            }
        }
        copy
    }

    /// Changes a database, once it is closed.
    pub(super) fn change(&self, name: &str, sql: &str) {
        let database = rusqlite::Connection::open(self.path().join(name)).unwrap();
        database.busy_timeout(PATIENCE).unwrap();
        database.execute_batch(sql).unwrap();
    }

    /// Changes a database, or writes another content in its place.
    pub(super) fn spoil(&self, name: &str, how: &str) {
        if how.contains(' ') {
            return self.change(name, how);
        }
        self.change(name, "BEGIN IMMEDIATE; COMMIT");
        fs::write(self.path().join(name), how).unwrap();
    }
}

/// Why a path in it is refused.
fn refused(place: &Place, name: &str) -> String {
    let settings = Settings {
        path: place.path().join(name).components().collect(),
        ..place.settings()
    };
    match State::open_within(&settings, &place.clock, Duration::ZERO) {
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
    for name in "answers.db spent.db answers.db-wal spent.db-wal".split(' ') {
        assert_eq!(mode(&path.join(name)), 0o600, "{name}");
    }
}

/// What is done in a directory, what is then opened in it, and why that is refused.
const REFUSED: &str = "\
chmod 705 .|.|DIR has mode 0705; allowed is a mode that gives no access to group and others: chmod go= DIR
chmod 720 .|.|DIR has mode 0720; allowed is a mode that gives no access to group and others: chmod go= DIR
touch spent.db; chmod 604 spent.db|.|DIR/spent.db has mode 0604; allowed is a mode that gives no access to group and others: chmod go= DIR/spent.db
ln -s /dev/null answers.db|.|DIR/answers.db is not a file: remove it, or set another state.path
mkdir answers.db|.|DIR/answers.db is not a file: remove it, or set another state.path
touch x|x|DIR/x is not a directory: remove it, or set another state.path
touch x|x/new|DIR/x/new cannot be used: Not a directory (os error 20); allowed is a directory on a disk with free space, in which ordgate can read and write files
true|no/new|DIR/no/new cannot be used: No such file or directory (os error 2); allowed is a directory on a disk with free space, in which ordgate can read and write files
touch another-programs-file|.|opened";

#[test]
fn what_others_have_access_to_or_is_of_another_kind_is_refused() {
    for line in REFUSED.lines() {
        let [make, name, expected] = line.split('|').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let place = Place::new();
        let mut shell = std::process::Command::new("sh");
        let made = shell.args(["-c", make]).current_dir(place.path()).status();
        assert!(made.unwrap().success());
        assert_eq!(refused(&place, name), expected);
    }
}

#[test]
fn another_users_directory_is_refused() {
    let place = Place::new();
    let found = fs::metadata(place.path()).unwrap();
    let (user, other) = (found.uid(), found.uid() + 1);
    let refused = check(place.path(), &found, true, other).unwrap_err();
    let path = place.path().display();
    assert_eq!(
        refused.to_string(),
        format!(
            "{path} belongs to user {user}, and ordgate runs as user {other}; allowed are a directory and files of that user: chown -R {other} {path}, or set another state.path"
        )
    );
}

#[test]
fn one_process_uses_a_directory() {
    let place = Place::new();
    let State { answers, spent } = place.open();
    let in_use = "DIR is in use by another process; allowed is one process for each directory: stop the other one, or set another state.path";
    assert_eq!(refused(&place, "."), in_use);
    drop(spent);
    assert_eq!(refused(&place, "."), in_use);
    drop(answers);
    place.open();
}
