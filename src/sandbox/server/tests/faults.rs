//! Faults as a client sees them.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::{Running, body, start};
use crate::sandbox::{Fault, FaultKind, Settings};

/// A page of the largest block.
const TARGET: &str = "/runes/v1/blocks/840023/activity?limit=60";

fn order(running: &Running, kind: FaultKind) {
    running
        .sandbox
        .fault(Fault::once(kind).on("/runes/v1/blocks/"));
}

#[tokio::test]
async fn faults_change_how_the_answer_is_sent() {
    let running = start(Settings::default()).await;
    let target = TARGET;
    let right = running.get(target).await;
    let length = body(&right).len();
    let order = |kind| order(&running, kind);

    order(FaultKind::Truncate);
    let cut = running.get(target).await;
    assert!(cut.contains(&format!("content-length: {length}\r\n")));
    assert_eq!(body(&cut), &body(&right)[..body(&cut).len()]);
    assert!(!body(&cut).is_empty() && body(&cut).len() < length);

    order(FaultKind::Close);
    assert_eq!(running.get(target).await, "");

    order(FaultKind::Stall(Duration::from_millis(60)));
    let begun = Instant::now();
    assert_eq!(body(&running.get(target).await), body(&right));
    assert!(begun.elapsed() >= Duration::from_millis(60));

    order(FaultKind::Drip(Duration::from_millis(2)));
    let begun = Instant::now();
    assert_eq!(body(&running.get(target).await), body(&right));
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert_eq!(running.sandbox.counts().unanswered, 1);
}

#[tokio::test]
async fn faults_replace_the_answer() {
    let running = start(Settings::default()).await;
    let target = TARGET;
    let right = running.get(target).await;
    let order = |kind| order(&running, kind);

    order(FaultKind::Html);
    let page = running.get(target).await;
    assert!(page.contains("content-type: text/html; charset=utf-8\r\n"));

    order(FaultKind::Garbage);
    assert!(serde_json::from_str::<serde_json::Value>(body(&running.get(target).await)).is_err());

    order(FaultKind::Redirect);
    let moved = running.get(target).await;
    assert!(
        moved.starts_with("HTTP/1.1 302 ")
            && moved.contains(&format!("location: {target}&followed=1\r\n"))
    );

    order(FaultKind::Oversize {
        bytes: 3 << 20,
        declared: true,
    });
    let large = running.get(target).await;
    assert_eq!(body(&large).len(), 3 << 20);
    assert!(large.contains("content-length: 3145728\r\n") && body(&large).ends_with("]}"));

    order(FaultKind::Oversize {
        bytes: 1 << 20,
        declared: false,
    });
    let large = running.get(target).await;
    assert!(large.contains("transfer-encoding: chunked\r\n") && body(&large).len() > 1 << 20);

    let waits = [(503, Some(7)), (429, Some(3))];
    let none = [500, 401, 403, 410].map(|status| (status, None));
    for (status, wait) in waits.into_iter().chain(none) {
        let status = StatusCode::from_u16(status).expect("a status");
        order(FaultKind::Status {
            status,
            retry_after: wait,
        });
        let response = running.get(target).await;
        assert_eq!(response[9..12], *status.as_str(), "{response}");
        assert_eq!(response.contains("retry-after: "), wait.is_some());
    }
    let other = running.status("/runes/v1/").await;
    assert_eq!(other, "200", "the fault does not apply to another path");
    assert_eq!(body(&running.get(target).await), body(&right));
}

#[tokio::test]
async fn faults_are_queued_and_cleared_over_http() {
    let running = start(Settings::default()).await;
    let ordered = running
        .ask(
            "POST /sandbox/fault?kind=503&times=9&path=%2Frunes&retry-after=2",
            "",
        )
        .await;
    assert!(ordered.starts_with("HTTP/1.1 200 "), "{ordered}");
    let failed = running.get("/runes/v1/").await;
    assert!(failed.contains("retry-after: 2\r\n"), "{failed}");
    assert_eq!(running.status("/ordinals/v1/").await, "200");
    running.ask("DELETE /sandbox/fault", "").await;
    assert_eq!(running.status("/runes/v1/").await, "200");
    let refused = running.ask("POST /sandbox/fault?kind=none", "").await;
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
}
