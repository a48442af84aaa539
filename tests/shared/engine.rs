//! An engine that does not answer.

use std::time::{Duration, Instant};

use ordgate::clock::Clock;
use ordgate::shared::Shared;
use ordgate::shared::permits::{PermitDenied, PoolKey, PoolLimits};
use ordgate::shared::tip::TipLook;

use super::server::Server;
use super::{LONG, settings};

fn key() -> PoolKey {
    PoolKey {
        digest: "digest".into(),
        host: "api.example".into(),
    }
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "the time-out is of real time")]
async fn a_stopped_engine_costs_a_call_its_time_out_and_then_nothing() {
    let server = Server::start();
    let mut settings = settings(&server);
    settings.timeout = Duration::from_millis(50);
    let shared = Shared::new(settings, None, &Clock::machine());
    let pool = PoolLimits {
        per_minute: Some(10),
        per_second: Some(10),
    };
    let take = || async {
        shared
            .permits
            .take(&key(), pool, Duration::ZERO)
            .await
            .err()
    };
    while take().await == Some(PermitDenied::Absent) {}
    server.stop();
    let began = Instant::now();
    // Until the breaker opens: then calls return at once.
    while shared.snapshot().engine.unwrap().errors[1] < 1000 {
        assert_eq!(take().await, Some(PermitDenied::Absent));
        assert!(began.elapsed() < LONG, "{:?}", shared.snapshot());
    }
    assert!(matches!(
        shared.tips.look("http://tip", LONG).await,
        TipLook::Absent
    ));
    server.proceed();
    while take().await == Some(PermitDenied::Absent) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(began.elapsed() < LONG * 2, "{:?}", shared.snapshot());
    }
}
