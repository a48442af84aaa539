//! The engines behind one interface.
//!
//! A batch is safe from a kill once `sync` has returned, which the work calls every
//! second; a removal is when it returns.

mod fjall;
mod foyer;
mod lmdb;
mod log;
mod redb;

use std::path::Path;

use crate::work::Key;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

pub trait Subject {
    fn put_batch(&mut self, batch: &[(Key, Vec<u8>)]) -> Result<(), Failure>;
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Failure>;
    fn remove(&mut self, key: &Key) -> Result<(), Failure>;
    fn sync(&mut self) -> Result<(), Failure>;
}

pub const NAMES: [&str; 6] = [
    "log",
    "redb",
    "redb-generations",
    "fjall-generations",
    "lmdb",
    "foyer",
];

pub fn open(name: &str, directory: &Path, max_bytes: u64) -> Result<Box<dyn Subject>, Failure> {
    Ok(match name {
        "redb" => Box::new(redb::Single::open(directory, max_bytes)?),
        "redb-generations" => Box::new(redb::Generations::open(directory, max_bytes)?),
        "fjall-generations" => Box::new(fjall::Generations::open(directory, max_bytes)?),
        "lmdb" => Box::new(lmdb::Lmdb::open(directory, max_bytes)?),
        "log" => Box::new(log::Log::open(directory, max_bytes)?),
        "foyer" => Box::new(foyer::Foyer::open(directory, max_bytes)?),
        other => return Err(format!("no engine {other}").into()),
    })
}
