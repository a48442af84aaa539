//! A SQLite database as ordgate uses it: one connection, which nobody else may have
//! beside it, and a write-ahead log.
//!
//! A new database is made under another name and renamed when it is whole, so that a
//! process which is killed leaves none that is half made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::directory::access;
use super::{PATIENCE, StateError};

/// The `application_id` of ordgate's databases: "ordg".
const APPLICATION: i32 = 0x6f72_6467;
/// The version of their tables. One with another version is begun anew.
const VERSION: i32 = 1;
/// How a SQLite database begins.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Why a database cannot be opened.
pub(super) enum OpenError {
    /// There is none.
    Absent,
    /// It is damaged, or another program's.
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

/// Opens a database.
pub(super) fn open(path: &Path) -> Result<Connection, OpenError> {
    let mut magic = [0; MAGIC.len()];
    match File::open(path).and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) if magic == *MAGIC => {}
        Ok(()) => return Err(OpenError::Unusable("it is no SQLite database".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(OpenError::Absent),
        Err(error) => return Err(OpenError::Unusable(error.to_string())),
    }
    let database = connect(path)?;
    let number = |name| database.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    if number("application_id")? != APPLICATION || number("user_version")? != VERSION {
        let other = "it was made by another program, or another version of ordgate";
        return Err(OpenError::Unusable(other.to_owned()));
    }
    Ok(database)
}

/// Makes a new database in place of what there is, with tables and what else a batch of
/// SQL makes.
pub(super) fn create(path: &Path, batch: &str) -> Result<(), StateError> {
    let new = with_suffix(path, "-new");
    let failed = |error: &dyn ToString| access(path, error.to_string());
    // A log that stays would be applied to the new database.
    remove_logs(path).map_err(|error| failed(&error))?;
    remove(&new).map_err(|error| failed(&error))?;
    let made = (|| {
        let database = connect(&new)?;
        database.pragma_update(None, "application_id", APPLICATION)?;
        database.pragma_update(None, "user_version", VERSION)?;
        database.execute_batch(batch)?;
        database.close().map_err(|(_, error)| error)
    })();
    made.map_err(|error: rusqlite::Error| failed(&error))?;
    let moved = fs::rename(&new, path).and_then(|()| sync_parent(path));
    moved.map_err(|error| failed(&error))
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
    sync_parent(path)
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

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // SQLite gives its log the mode of the database. What is missing it reports itself.
    let mut options = OpenOptions::new();
    let _exists = options.write(true).create_new(true).mode(0o600).open(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags)?;
    database.busy_timeout(PATIENCE)?;
    // Exclusive before the first access: then there is no shared memory beside it.
    database.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    database.pragma_update(None, "journal_mode", "WAL")?;
    database.pragma_update(None, "trusted_schema", false)?;
    database.pragma_update(None, "cell_size_check", true)?;
    Ok(database)
}
