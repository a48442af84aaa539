//! LMDB by heed. The map's size is the bound, so the file cannot outgrow it. Opening
//! needs `unsafe`: another process that changes the file is undefined behaviour.

use std::path::Path;

use heed::types::{Bytes, U64};
use heed::{CommitOrAbort, Database, Env, EnvOpenOptions, MdbError, PutFlags};

use super::{Failure, Subject};
use crate::work::Key;

type Number = U64<heed::byteorder::BigEndian>;

pub struct Lmdb {
    /// Leaked: heed's databases borrow it.
    env: &'static Env,
    entries: Database<'static, Bytes, Bytes>,
    order: Database<'static, Number, Bytes>,
    next: u64,
    full: u64,
}

impl Lmdb {
    pub fn open(directory: &Path, max_bytes: u64) -> Result<Self, Failure> {
        let mut options = EnvOpenOptions::new();
        options.map_size(max_bytes as usize & !0xffff).max_dbs(2);
        // The program is the only one that opens the file.
        let env: &'static Env = Box::leak(Box::new(unsafe { options.open(directory)? }));
        env.clear_stale_readers()?;
        let (entries, order) = env
            .create_databases_and_commit(env.write_txn()?, |opener, transaction| {
                let entries = opener.create_database(transaction, Some("entries"))?;
                let order = opener.create_database(transaction, Some("order"))?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit((entries, order)))
            })?
            .commit()
            .ok_or("the databases were not made")?;
        let order: Database<'static, Number, Bytes> = order;
        let transaction = env.read_txn()?;
        let last = order.last(&transaction)?;
        let next = last.map_or(0, |(last, _)| last + 1);
        drop(transaction);
        Ok(Self {
            env,
            entries,
            order,
            next,
            full: max_bytes * 9 / 10,
        })
    }

    fn try_batch(&mut self, batch: &[(Key, Vec<u8>)]) -> Result<(), heed::Error> {
        let mut transaction = self.env.write_txn()?;
        let mut next = self.next;
        for (key, value) in batch {
            self.entries.put(&mut transaction, key, value)?;
            self.order
                .put_with_flags(&mut transaction, PutFlags::APPEND, &next, key)?;
            next += 1;
        }
        transaction.commit()?;
        self.next = next;
        Ok(())
    }

    /// Bytes of the pages that hold entries.
    fn used(&self) -> Result<u64, heed::Error> {
        let transaction = self.env.read_txn()?;
        let entries = self.entries.stat(&transaction)?.non_free_page_size();
        Ok((entries + self.order.stat(&transaction)?.non_free_page_size()) as u64)
    }

    fn evict(&mut self, count: usize) -> Result<(), heed::Error> {
        let mut transaction = self.env.write_txn()?;
        for _ in 0..count {
            let Some((number, key)) = self.order.first(&transaction)? else {
                break;
            };
            let key = key.to_vec();
            self.entries.delete(&mut transaction, &key)?;
            self.order.delete(&mut transaction, &number)?;
        }
        transaction.commit()?;
        Ok(())
    }
}

impl Subject for Lmdb {
    fn put_batch(&mut self, batch: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        // Even a removal needs free pages: some are kept free.
        while self.used()? > self.full {
            self.evict(4 * batch.len())?;
        }
        // Pages that a transaction frees are used from the next but one on.
        for _ in 0..20 {
            match self.try_batch(batch) {
                Err(heed::Error::Mdb(MdbError::MapFull)) => self.evict(4 * batch.len())?,
                other => return Ok(other?),
            }
        }
        Err("the map stays full".into())
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
        let transaction = self.env.read_txn()?;
        Ok(self.entries.get(&transaction, key)?.map(<[u8]>::to_vec))
    }

    fn remove(&mut self, key: &Key) -> Result<(), Failure> {
        let mut transaction = self.env.write_txn()?;
        self.entries.delete(&mut transaction, key)?;
        Ok(transaction.commit().map(drop)?)
    }

    fn sync(&mut self) -> Result<(), Failure> {
        // Each commit is durable.
        Ok(())
    }
}
