//! ordgate's own engine: a log of segments.

use std::path::Path;

use ordgate::disk::engine::Engine;

use super::{Failure, Subject};
use crate::work::Key;

pub struct Log(Engine);

impl Log {
    pub fn open(directory: &Path, max_bytes: u64) -> Result<Self, Failure> {
        Ok(Self(Engine::open(directory, max_bytes)?.0))
    }
}

impl Subject for Log {
    fn put_batch(&mut self, batch: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        Ok(self.0.put_batch(batch)?)
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.0.get(key)?)
    }

    fn remove(&mut self, key: &Key) -> Result<(), Failure> {
        Ok(self.0.remove(key)?)
    }

    fn sync(&mut self) -> Result<(), Failure> {
        Ok(self.0.sync()?)
    }
}
