//! Replicas that share through a real server of Valkey or Redis.

mod permits;
mod purges;
mod requests;
mod responses;
mod server;
mod tips;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ordgate::clock::Clock;
use ordgate::shared::{EngineUrl, Settings, Shared};
use server::Server;

/// Longer than anything takes that these tests wait for.
const LONG: Duration = Duration::from_secs(20);

/// How replicas share this server. The time-out is long: a busy machine is no fault.
fn settings(server: &Server) -> Settings {
    Settings {
        replicas: NonZeroU32::new(4).unwrap(),
        engine: Some(EngineUrl::parse(&server.url()).unwrap()),
        url_file: None,
        timeout: Duration::from_secs(5),
        fill_wait: Duration::from_secs(10),
    }
}

/// So many of four replicas.
fn replicas<const N: usize>(server: &Server) -> [Arc<Shared>; N] {
    [(); N].map(|()| Shared::new(settings(server), None, &Clock::machine()))
}
