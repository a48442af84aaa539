//! Prefetching.

use ordgate::sandbox::Settings;

use super::{Ground, block};
use crate::support::until;

const TICKER: &str = "/ordinals/v1/brc-20/tokens/pepe";
const LARGE: u32 = 840_173;

#[tokio::test]
async fn without_look_ahead_nothing_is_prefetched() {
    let ground = Ground::new().await;
    ground
        .costs(&format!("{}?limit=60&offset=0", block(LARGE)), 1)
        .await;
    ground
        .costs(&format!("{}?limit=60&offset=60", block(LARGE)), 1)
        .await;
    ground.costs(TICKER, 1).await;
    for _ in 0..100 {
        ground.costs(TICKER, 0).await;
    }
    let before = ground.requests();
    ground.sandbox.advance(1);
    ground.probe().await;
    assert!(fetched(&ground));
    assert_eq!(ground.requests(), before);
}

/// Whether nothing is being fetched.
fn fetched(ground: &Ground) -> bool {
    ground.gateway.fetching() == 0
}

#[tokio::test]
async fn the_next_window_is_fetched_ahead_for_a_client_that_pages() {
    let ground = Ground::with(Settings::default(), "chain.look_ahead.next_window = true").await;
    let page = |offset: u32| format!("{}?limit=60&offset={offset}", block(LARGE));
    // One page alone does not count as paging.
    ground.costs(&page(0), 1).await;
    until("it is quiet", || fetched(&ground)).await;
    assert_eq!(ground.requests(), 1);
    ground.same(&page(60)).await;
    until("the next window", || ground.requests() == 3).await;
    until("it is there", || fetched(&ground)).await;
    ground.costs(&page(120), 0).await;
}

#[tokio::test]
async fn the_most_used_answers_are_refreshed_after_a_new_block() {
    let ground = Ground::with(Settings::default(), "chain.look_ahead.refresh = 1").await;
    let cold = "/ordinals/v1/brc-20/tokens/rats";
    ground.costs(cold, 1).await;
    ground.costs(TICKER, 1).await;
    let mut client = ground.gateway.client().await;
    // One hit in eight is counted, by chance.
    for _ in 0..400 {
        client.get(TICKER).await;
    }
    ground.sandbox.advance(1);
    ground.probe().await;
    until("it is fetched", || ground.requests() == 3).await;
    until("it is there", || fetched(&ground)).await;
    ground.costs(TICKER, 0).await;
    ground.costs(cold, 1).await;
}
