//! A SQLite database as ordgate uses it: one connection, which nobody else may have
//! beside it, and a write-ahead log.
//!
//! A process that is killed while it begins a database anew leaves a file without tables, which
//! the next one finds unusable.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::StateError;

/// The `application_id` of ordgate's databases: "ordg".
const APPLICATION: i32 = 0x6f72_6467;
/// The version of their tables. One with another version is begun anew.
const VERSION: i32 = 2;

/// Why a database cannot be opened.
#[derive(Debug)]
pub(super) enum OpenError {
    /// It is damaged, or another program's, or the disk fails.
    Unusable(String),
    /// Another process has it open.
    InUse,
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::InUse,
            _ => Self::Unusable(error.to_string()),
        }
    }
}

/// Opens a database, and reads of it what `read` does. Where it is absent, or `read` finds it
/// unusable, it is begun anew with the tables that `new` makes, which is told whether it was there.
pub(super) fn open<T>(
    path: &Path,
    read: impl Fn(&mut Connection) -> Result<T, OpenError>,
    new: impl FnOnce(bool) -> String,
) -> Result<(Connection, T), StateError> {
    let existing = || {
        let mut database = connect(path)?;
        let number = |name| database.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        if number("application_id")? != APPLICATION || number("user_version")? != VERSION {
            let other = "it was made by another program, or another version of ordgate";
            return Err(OpenError::Unusable(other.to_owned()));
        }
        let found = read(&mut database)?;
        Ok((database, found))
    };
    let is_there = path.exists();
    let opened = match is_there.then(&existing) {
        Some(Err(OpenError::Unusable(error))) => {
            tracing::warn!(path = %path.display(), error, "a database cannot be read, and is begun anew");
            None
        }
        opened => opened,
    };
    let opened = opened.unwrap_or_else(|| {
        create(path, &new(is_there)).inspect_err(|_full| {
            if !is_there {
                // Otherwise the next start finds a file, and takes it for what was spent.
                let _ = fs::remove_file(path);
            }
        })?;
        existing()
    });
    opened.map_err(|error| match error {
        OpenError::InUse => super::in_use(path),
        OpenError::Unusable(error) => super::access(path, error),
    })
}

/// Begins a database anew, with what a batch of SQL makes.
fn create(path: &Path, batch: &str) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::Unusable(error.to_string());
    // Empty first: the log of what was there is not applied to an empty database.
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    drop(options.open(path).map_err(failed)?);
    remove_logs(path).map_err(failed)?;
    let database = connect(path)?;
    database.execute_batch(&format!(
        "BEGIN; {batch}; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};
        COMMIT"
    ))?;
    Ok(())
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags)?;
    database.busy_timeout(Duration::ZERO)?;
    // Exclusive before the first access: then there is no shared memory beside it.
    database.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    database.pragma_update(None, "journal_mode", "WAL")?;
    database.pragma_update(None, "cell_size_check", true)?;
    Ok(database)
}

/// Writes the log into the database, on the disk, and empties it.
pub(super) fn empty_log(database: &Connection) -> rusqlite::Result<()> {
    database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Removes a database and its log.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    remove_file(path)?;
    remove_logs(path)
}

/// Leaves a database unreadable: the next process that opens it finds no database, but
/// a file.
pub(super) fn spoil(path: &Path) -> io::Result<()> {
    fs::write(path, "ordgate could not keep this database\n")?;
    remove_logs(path)
}

fn remove_logs(path: &Path) -> io::Result<()> {
    for suffix in ["-wal", "-journal", "-shm"] {
        remove_file(&with_suffix(path, suffix))?;
    }
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The file of a database with this suffix.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
