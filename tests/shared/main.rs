//! Replicas that share through a real server of Valkey or Redis.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

mod engine;
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
use ordgate::shared::purges::Generation;
use ordgate::shared::{EngineUrl, Settings, Shared};
use server::Server;

/// Longer than anything takes that these tests wait for.
const LONG: Duration = Duration::from_secs(20);

/// How replicas share this server. The time-out is long: a busy machine is no fault.
fn settings(server: &Server) -> Settings {
    Settings {
        replicas: NonZeroU32::new(4).unwrap(),
        engine: Some(EngineUrl::parse(&server.url()).unwrap()),
        prefix: "test".to_owned(),
        timeout: Duration::from_secs(5),
        fill_wait: Duration::from_secs(10),
    }
}

/// A replica of four.
fn replica(server: &Server) -> Arc<Shared> {
    Shared::new(settings(server), None, &Clock::machine())
}

/// A replica whose disk has applied these purges.
fn replica_with(server: &Server, stored: Generation) -> Arc<Shared> {
    Shared::new(settings(server), Some(stored), &Clock::machine())
}
