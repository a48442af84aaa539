//! stand-in
#![allow(missing_docs, reason = "stand-in")]
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

#[derive(Debug, thiserror::Error)]
#[error("engine: {0}")]
pub struct EngineError(#[from] std::io::Error);
#[derive(Debug, Default, Clone, Copy)]
pub struct Recovered;
pub struct Engine {
    dir: PathBuf,
    map: Mutex<HashMap<[u8; 16], Vec<u8>>>,
}
impl Engine {
    pub fn open(dir: &Path, _max: u64) -> Result<(Self, Recovered), EngineError> {
        std::fs::create_dir_all(dir)?;
        let mut map = HashMap::new();
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if let Ok(number) = u128::from_str_radix(&name, 16) {
                map.insert(number.to_be_bytes(), std::fs::read(path)?);
            }
        }
        Ok((
            Self {
                dir: dir.to_owned(),
                map: Mutex::new(map),
            },
            Recovered,
        ))
    }
    fn path(&self, key: &[u8; 16]) -> PathBuf {
        self.dir.join(format!("{:032x}", u128::from_be_bytes(*key)))
    }
    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 16], Vec<u8>>> {
        self.map
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
    pub fn get(&self, key: &[u8; 16]) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.map().get(key).cloned())
    }
    pub fn put_batch(&self, batch: &[([u8; 16], Vec<u8>)]) -> Result<(), EngineError> {
        for (key, value) in batch {
            std::fs::write(self.path(key), value)?;
            self.map().insert(*key, value.clone());
        }
        Ok(())
    }
    pub fn remove(&self, key: &[u8; 16]) -> Result<(), EngineError> {
        if self.map().remove(key).is_some() {
            std::fs::remove_file(self.path(key))?;
        }
        Ok(())
    }
    pub fn bytes(&self) -> u64 {
        self.map().values().map(|v| v.len() as u64).sum()
    }
    pub fn entries(&self) -> u64 {
        self.map().len() as u64
    }
    pub fn evicted(&self) -> u64 {
        0
    }
}
