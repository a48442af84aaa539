//! fjall: a keyspace for each generation, the oldest of which is deleted whole.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Failure, Subject};
use crate::work::Key;

/// How many generations there are.
const GENERATIONS: u64 = 8;

/// The least that fjall allows its journals.
const JOURNALS: u64 = 64 << 20;

/// Memory for what is not yet in a table, and for cached blocks.
const MEMORY: u64 = 16 << 20;

pub struct Generations {
    database: Database,
    /// The oldest first.
    keyspaces: Vec<(u64, Keyspace)>,
    each: u64,
    put: u64,
}

impl Generations {
    pub fn open(directory: &Path, max_bytes: u64) -> Result<Self, Failure> {
        let database = Database::builder(directory)
            .cache_size(MEMORY)
            .max_journaling_size(JOURNALS)
            .max_cached_files(Some(128))
            .open()?;
        let mut numbers: Vec<u64> = database
            .list_keyspace_names()
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        numbers.sort_unstable();
        if numbers.is_empty() {
            numbers.push(0);
        }
        let mut generations = Self {
            database,
            keyspaces: Vec::new(),
            each: max_bytes.saturating_sub(JOURNALS) / GENERATIONS,
            put: 0,
        };
        for number in numbers {
            generations.add(number)?;
        }
        Ok(generations)
    }

    fn add(&mut self, number: u64) -> Result<(), Failure> {
        let keyspace = self.database.keyspace(&number.to_string(), || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMORY)
                .manual_journal_persist(true)
        })?;
        self.keyspaces.push((number, keyspace));
        Ok(())
    }
}

impl Subject for Generations {
    fn put_batch(&mut self, batch: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let (number, newest) = self.keyspaces.last().expect("there is always one");
        let number = *number;
        // Tables are merged in a copy, and deleted by a thread of fjall's: a generation
        // is full at half of its part.
        if newest.disk_space() > self.each / 2 || self.put > self.each / 2 {
            if self.keyspaces.len() as u64 >= GENERATIONS {
                let (_, oldest) = self.keyspaces.remove(0);
                self.database.delete_keyspace(oldest)?;
            }
            self.add(number + 1)?;
            self.put = 0;
        }
        let (_, newest) = self.keyspaces.last().expect("there is always one");
        let mut transaction = self.database.batch();
        for (key, value) in batch {
            self.put += value.len() as u64;
            transaction.insert(newest, &key[..], &value[..]);
        }
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
        for (_, keyspace) in self.keyspaces.iter().rev() {
            if let Some(value) = keyspace.get(key)? {
                return Ok(Some(value.to_vec()));
            }
        }
        Ok(None)
    }

    fn remove(&mut self, key: &Key) -> Result<(), Failure> {
        for (_, keyspace) in &self.keyspaces {
            keyspace.remove(&key[..])?;
        }
        self.sync()
    }

    fn sync(&mut self) -> Result<(), Failure> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }
}
