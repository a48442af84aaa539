//! redb, with quick repair: one file that evicts by removal, and generations.

use std::fs;
use std::path::{Path, PathBuf};

use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Failure, Subject};
use crate::work::Key;

const ENTRIES: TableDefinition<&[u8; 16], &[u8]> = TableDefinition::new("entries");
/// The key of each put, and the bytes of all values put before it.
const ORDER: TableDefinition<u64, (&[u8; 16], u64)> = TableDefinition::new("order");

/// Memory for redb's cache of pages.
const CACHE: usize = 32 << 20;

/// How many generations there are.
const GENERATIONS: u64 = 8;

fn database(path: &Path) -> Result<Database, Failure> {
    let database = Database::builder().set_cache_size(CACHE).create(path)?;
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    transaction.open_table(ENTRIES)?;
    transaction.open_table(ORDER)?;
    transaction.commit()?;
    Ok(database)
}

fn write(
    database: &Database,
    durability: Durability,
    work: impl FnOnce(&redb::WriteTransaction) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(durability)?;
    transaction.set_quick_repair(true);
    work(&transaction)?;
    Ok(transaction.commit()?)
}

fn get(database: &Database, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
    let table = database.begin_read()?.open_table(ENTRIES)?;
    Ok(table.get(key)?.map(|value| value.value().to_vec()))
}

fn remove(database: &Database, key: &Key) -> Result<(), Failure> {
    write(database, Durability::Immediate, |transaction| {
        transaction.open_table(ENTRIES)?.remove(key)?;
        Ok(())
    })
}

/// One file. The bytes of the values stay below 60 % of the bound.
pub struct Single {
    database: Database,
    next: u64,
    put: u64,
    max_bytes: u64,
}

impl Single {
    pub fn open(directory: &Path, max_bytes: u64) -> Result<Self, Failure> {
        let database = database(&directory.join("store.redb"))?;
        let order = database.begin_read()?.open_table(ORDER)?;
        let (next, put) = match order.last()? {
            // The last value itself is not counted: that is near enough.
            Some((number, entry)) => (number.value() + 1, entry.value().1),
            None => (0, 0),
        };
        Ok(Self {
            database,
            next,
            put,
            max_bytes: max_bytes * 6 / 10,
        })
    }
}

impl Subject for Single {
    fn put_batch(&mut self, batch: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let (mut next, mut put, max) = (self.next, self.put, self.max_bytes);
        write(&self.database, Durability::None, |transaction| {
            let mut entries = transaction.open_table(ENTRIES)?;
            let mut order = transaction.open_table(ORDER)?;
            for (key, value) in batch {
                entries.insert(key, &value[..])?;
                order.insert(next, (key, put))?;
                next += 1;
                put += value.len() as u64;
            }
            while order
                .first()?
                .is_some_and(|(_, oldest)| put - oldest.value().1 > max)
            {
                let Some((_, oldest)) = order.pop_first()? else {
                    break;
                };
                entries.remove(oldest.value().0)?;
            }
            Ok(())
        })?;
        (self.next, self.put) = (next, put);
        Ok(())
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
        get(&self.database, key)
    }

    fn remove(&mut self, key: &Key) -> Result<(), Failure> {
        remove(&self.database, key)
    }

    fn sync(&mut self) -> Result<(), Failure> {
        write(&self.database, Durability::Immediate, |_| Ok(()))
    }
}

/// Files of an eighth of the bound each; the oldest is deleted whole.
pub struct Generations {
    directory: PathBuf,
    /// The oldest first.
    files: Vec<(u64, Database)>,
    each: u64,
}

impl Generations {
    pub fn open(directory: &Path, max_bytes: u64) -> Result<Self, Failure> {
        let mut numbers: Vec<u64> = fs::read_dir(directory)?
            .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        if numbers.is_empty() {
            numbers.push(0);
        }
        let mut generations = Self {
            directory: directory.to_owned(),
            files: Vec::new(),
            each: max_bytes / GENERATIONS,
        };
        for number in numbers {
            let database = database(&generations.path(number))?;
            generations.files.push((number, database));
        }
        Ok(generations)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number}.redb"))
    }

    fn newest(&self) -> &(u64, Database) {
        self.files.last().expect("there is always one")
    }
}

impl Subject for Generations {
    fn put_batch(&mut self, batch: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        let number = self.newest().0;
        // A file grows in steps; this is where the next one may not fit.
        if fs::metadata(self.path(number))?.len() > self.each * 8 / 10 {
            self.sync()?;
            if self.files.len() as u64 >= GENERATIONS {
                let (oldest, database) = self.files.remove(0);
                drop(database);
                fs::remove_file(self.path(oldest))?;
            }
            let database = database(&self.path(number + 1))?;
            self.files.push((number + 1, database));
        }
        write(&self.newest().1, Durability::None, |transaction| {
            let mut entries = transaction.open_table(ENTRIES)?;
            for (key, value) in batch {
                entries.insert(key, &value[..])?;
            }
            Ok(())
        })
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
        for (_, database) in self.files.iter().rev() {
            if let Some(value) = get(database, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn remove(&mut self, key: &Key) -> Result<(), Failure> {
        for (_, database) in &self.files {
            if get(database, key)?.is_some() {
                remove(database, key)?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        write(&self.newest().1, Durability::Immediate, |_| Ok(()))
    }
}
