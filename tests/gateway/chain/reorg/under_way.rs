//! Answers that were under way when a reorg was detected.

use ordgate::sandbox::{Sandbox, Settings};

use super::super::{acting, before, block, height_of, probe_all, reply, targets, transaction};
use crate::support::{Gate, until};

/// An answer of before the reorg that comes after it.
#[tokio::test]
async fn an_answer_overtaken_by_a_new_tip_is_passed_on_and_not_stored() {
    let sandbox = Sandbox::new(Settings::default());
    let height = sandbox.tip().height - 1;
    let id = sandbox.transactions_at(height)[0].clone();
    let hash = sandbox.hash_at(height).unwrap();
    for path in [block(height), block(&hash), transaction(&id)] {
        let asked = format!("{path}?limit=60&offset=0");
        let sandbox = Sandbox::new(Settings::default());
        let (upstream, gate) = (acting(&sandbox), Gate::new());
        let gateway = before(&upstream, "").await;
        upstream.once(&asked, reply(&sandbox, &asked).behind(&gate));
        let mut clients = [
            gateway.start_get(&path).await,
            gateway.start_get(&path).await,
        ];
        until("it is asked", || targets(&upstream).contains(&asked)).await;
        let truth = |path: &str| sandbox.answer(&http::Method::GET, path, &http::HeaderMap::new());
        let old = truth(&path);
        sandbox.reorg(2);
        probe_all(&gateway).await;
        gate.open();
        for client in &mut clients {
            let answer = client.answer("GET").await;
            assert_eq!(answer.status, 200);
            assert!(answer.body == old.body, "{path}: {}", answer.text());
            assert_eq!(answer.must("cache-control"), "no-store");
        }
        for path in [&path, &block(height), &block(&hash)] {
            let answer = gateway.get(path).await;
            assert!(!answer.text().contains(&hash), "{path}");
            assert!(answer.body == truth(path).body, "{path}");
        }
    }
}

/// The same where the answer that comes late is the first that tells of its
/// block, and the reorg was seen at another.
#[tokio::test]
async fn an_old_answer_that_arrives_late_is_not_stored() {
    let sandbox = Sandbox::new(Settings::default());
    let tip = sandbox.tip().height;
    let (upstream, gate) = (acting(&sandbox), Gate::new());
    let gateway = before(&upstream, "").await;
    let path = block(tip - 2);
    let asked = format!("{path}?limit=60&offset=0");
    let old = sandbox.hash_at(tip - 2).unwrap();
    upstream.once(&asked, reply(&sandbox, &asked).behind(&gate));
    let mut client = gateway.start_get(&path).await;
    until("it is asked", || targets(&upstream).contains(&asked)).await;
    sandbox.reorg(3);
    // Seen at the tip alone.
    gateway.get(&block(tip)).await;
    probe_all(&gateway).await;
    gate.open();
    let answer = client.answer("GET").await;
    assert!(!answer.text().contains(&old));
    assert!(!gateway.get(&path).await.text().contains(&old));
    assert_eq!(
        height_of(&gateway, &ordgate::pages::hash(&old).unwrap()),
        None
    );
}

#[tokio::test]
async fn windows_overtaken_by_a_new_tip_are_passed_on_together() {
    let sandbox = Sandbox::new(Settings {
        blocks: 174,
        ..Settings::default()
    });
    // The tip is one of the largest blocks.
    let tip = sandbox.tip().height;
    let (upstream, gate) = (acting(&sandbox), Gate::new());
    let gateway = before(&upstream, "").await;
    let window = |offset| format!("{}?limit=60&offset={offset}", block(tip));
    upstream.once(&window(0), reply(&sandbox, &window(0)).behind(&gate));
    upstream.once(&window(60), reply(&sandbox, &window(60)).behind(&gate));
    let mut client = gateway.client().await;
    let path = format!("{}?limit=60&offset=30", block(tip));
    let truth = || sandbox.answer(&http::Method::GET, &path, &http::HeaderMap::new());
    let old = truth();
    client.send_request("GET", &path, &[]).await;
    until("both are asked", || targets(&upstream).len() == 2).await;
    sandbox.reorg(1);
    probe_all(&gateway).await;
    gate.open();
    assert!(client.answer("GET").await.body == old.body);
    assert!(gateway.get(&path).await.body == truth().body);
}
