//! A reload whose files cannot be read, as on a file system that does not answer.

use crate::support::{Client, Gateway, TOKEN, Upstream, within};

#[tokio::test]
async fn a_reload_that_hangs_holds_up_neither_others_nor_the_end() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let (held, is_held) = tokio::sync::oneshot::channel();
    let (let_go, go_on) = std::sync::mpsc::channel::<()>();
    // As long as somebody has it locked, a reload hangs.
    let source = gateway.source.clone();
    std::thread::spawn(move || {
        let _hangs = source.lock().unwrap();
        held.send(()).unwrap();
        // Until the test ends.
        let _ = go_on.recv();
    });
    is_held.await.unwrap();
    let mut first = Client::connect(gateway.admin).await;
    first.send_request("POST", "/reload", &[]).await;
    let mut admin = Client::connect(gateway.admin).await;
    within("a reload is under way", async {
        loop {
            let status = admin.get("/status").await.json();
            if status["reload"]["under_way_seconds"].is_number() {
                return;
            }
        }
    })
    .await;
    let refused = gateway.reload_as_it_is().await;
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert_eq!(refused.must("content-type"), "application/problem+json");
    let detail = refused.json()["detail"].to_string();
    assert!(
        detail.contains("Another reload has been under way"),
        "{detail}"
    );
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(gateway.admin("/healthz").await.status, 200);
    gateway.end().await;
    drop(let_go);
}
