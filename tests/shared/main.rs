//! What replicas share, with real servers of the engine: `redis-server` on free loopback
//! ports, single, with copies, and as a cluster. Each is stopped by its process id.
//!
//! Without `redis-server`, each test says that it is skipped; with `ORDGATE_CI=1` it
//! fails then.

use crate::{servers, support};

mod client;

mod cooldowns;

mod entry_scripts;

mod journal;

mod replicas;

mod scripts;

mod storm;

mod tier;

mod tips;

mod tls;
