//! Class *live*: how long a token is served while its tip does not move, and how
//! many requests that takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use ordgate::sandbox::{Sandbox, Settings};

use super::{before, for_status, own, probe_all, reply, targets, tip_of};
use crate::support::{Client, Gateway, Reply, Upstream};

const TOKENS: u64 = 6;

const OFTEN: &str =
    "limit.enabled = false\nchain.tip.runes.every = \"5s\"\nchain.tip.ordinals.every = \"5s\"";

/// A chain with many tokens, and a gateway before it.
struct Scene {
    sandbox: Sandbox,
    upstream: Upstream,
    gateway: Gateway,
    client: Client,
    /// What all tokens say but the first; and what that says.
    state: [Arc<AtomicU64>; 2],
    seconds: u64,
}

fn path(token: u64) -> String {
    format!("/ordinals/v1/brc-20/tokens/t{token:03}")
}

impl Scene {
    async fn new() -> Self {
        let sandbox = Sandbox::new(Settings::default());
        let (upstream, model) = (Upstream::start(), sandbox.clone());
        let state: [Arc<AtomicU64>; 2] = Default::default();
        let says = state.clone();
        upstream.usually(move |seen| {
            if for_status(seen) {
                return reply(&model, &seen.target());
            }
            // Each answer bears the tip's tag.
            let (_, fields, _) = own(&model, "/ordinals/v1/");
            let which = usize::from(seen.target() == path(0));
            let state = says[which].load(SeqCst);
            Reply::with(200, &fields, format!("{{\"token\":{{\"state\":{state}}}}}"))
        });
        let gateway = before(&upstream, OFTEN).await;
        let client = gateway.client().await;
        Self {
            sandbox,
            upstream,
            gateway,
            client,
            state,
            seconds: 0,
        }
    }

    /// A second passes, with a probe every five, and each token is requested.
    /// Answers with how many of them are out of date.
    async fn second(&mut self) -> usize {
        self.gateway.advance(1_000);
        self.seconds += 1;
        if self.seconds.is_multiple_of(5) {
            probe_all(&self.gateway).await;
        }
        self.ask_all().await
    }

    async fn ask_all(&mut self) -> usize {
        let mut old = 0;
        for token in 0..TOKENS {
            let answer = self.client.get(&path(token)).await;
            assert!(matches!(answer.status, 200 | 404));
            let state = self.state[usize::from(token == 0)].load(SeqCst);
            old += usize::from(!answer.text().contains(&format!(":{state}}}")));
        }
        old
    }

    async fn seconds(&mut self, seconds: u64) -> Vec<usize> {
        let mut old = Vec::new();
        for _ in 0..seconds {
            old.push(self.second().await);
        }
        old
    }

    fn requests(&self) -> usize {
        targets(&self.upstream).len()
    }

    /// A new tip, which ordgate learns of at once.
    async fn new_tip(&self) {
        let before = tip_of(&self.gateway, super::ORDINALS).epoch;
        self.sandbox.advance(1);
        probe_all(&self.gateway).await;
        assert!(tip_of(&self.gateway, super::ORDINALS).epoch > before);
    }
}

#[tokio::test]
async fn after_a_new_tip_each_token_is_fetched_twice() {
    let mut scene = Scene::new().await;
    scene.ask_all().await;
    scene.seconds(4).await;
    let asked = scene.requests();
    scene.new_tip().await;
    scene.seconds(20).await;
    assert_eq!(scene.requests() - asked, TOKENS as usize);
    // The indexer writes its tokens only now.
    scene.state.iter().for_each(|state| state.store(1, SeqCst));
    assert_eq!(scene.seconds(14).await.last(), Some(&0));
    assert_eq!(scene.requests() - asked, 2 * TOKENS as usize);
}
