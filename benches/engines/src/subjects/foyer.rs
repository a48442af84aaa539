//! foyer: its block engine with the tombstone log, which keeps removals over a restart.

use std::path::Path;

use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCachePolicy, Load, PsyncIoEngineConfig, RecoverMode,
};
use tokio::runtime::Runtime;

use super::{Failure, Subject};
use crate::work::Key;

/// Memory for entries, and for what is not yet written.
const MEMORY: usize = 16 << 20;

pub struct Foyer {
    runtime: Runtime,
    cache: HybridCache<u128, Vec<u8>>,
}

impl Foyer {
    pub fn open(directory: &Path, max_bytes: u64) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        // The tombstone log lies beside the blocks.
        let capacity = max_bytes as usize * 98 / 100;
        let block = (capacity / 64).clamp(1 << 20, 64 << 20) & !0xfff;
        let cache = runtime.block_on(async {
            let device = FsDeviceBuilder::new(directory)
                .with_capacity(capacity)
                .build()?;
            HybridCacheBuilder::new()
                .with_policy(HybridCachePolicy::WriteOnInsertion)
                .memory(MEMORY)
                .with_weighter(|_: &u128, value: &Vec<u8>| 16 + value.len())
                .storage()
                .with_io_engine_config(PsyncIoEngineConfig::new())
                .with_recover_mode(RecoverMode::Quiet)
                .with_engine_config(
                    BlockEngineConfig::new(device)
                        .with_block_size(block)
                        .with_buffer_pool_size(MEMORY)
                        .with_tombstone_log(true),
                )
                .build()
                .await
        })?;
        Ok(Self { runtime, cache })
    }
}

impl Subject for Foyer {
    fn put_batch(&mut self, batch: &[(Key, Vec<u8>)]) -> Result<(), Failure> {
        for (key, value) in batch {
            let writer = self.cache.storage_writer(u128::from_be_bytes(*key));
            writer.force().insert(value.clone());
        }
        self.sync()
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
        let key = u128::from_be_bytes(*key);
        // Only what is on disk counts here.
        Ok(
            match self.runtime.block_on(self.cache.storage().load(&key))? {
                Load::Entry {
                    key: stored, value, ..
                } => (stored == key).then_some(value),
                Load::Piece { piece, .. } => Some(piece.value().clone()),
                Load::Throttled | Load::Miss => None,
            },
        )
    }

    fn remove(&mut self, key: &Key) -> Result<(), Failure> {
        self.cache.remove(&u128::from_be_bytes(*key));
        self.sync()
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.runtime.block_on(self.cache.storage().wait());
        Ok(())
    }
}
