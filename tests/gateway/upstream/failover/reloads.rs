//! Reloads that change the endpoints, and what `/status` shows of them.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

use futures_util::future::join_all;

use super::super::{metric, until_idle};
use super::heights::{at_height, chained, height};
use super::{SOON, endpoint_in_use, pair, status, tokens};
use crate::support::gateway::urls;
use crate::support::upstream::usual_body;
use crate::support::{Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

#[tokio::test]
async fn reloads_that_change_the_urls_lose_no_request() {
    let [one, other] = pair();
    let setup = Setup::before(&one).keys("a-key").config(SOON);
    let gateway = setup.config("limit.enabled = false").start();
    let warm = token(0);
    assert_eq!(gateway.get(&warm).await.status, 200);
    let over = AtomicBool::new(false);
    let next = AtomicU64::new(1);
    let clients = (0..4).map(async |_| {
        let mut client = gateway.client().await;
        let mut answered = 0;
        while !over.load(SeqCst) {
            let number = next.fetch_add(1, SeqCst);
            let target = token(usize::try_from(number).unwrap());
            let answer = client.get(&target).await;
            assert_eq!((answer.status, answer.text()), (200, &*usual_body(&target)));
            answered += 1;
        }
        answered
    });
    let reloads = async {
        let lists: [&[&Upstream]; 6] = [
            &[&one, &other],
            &[&other, &one],
            &[&other],
            &[&one, &other],
            &[&one],
            &[&other, &one],
        ];
        for upstreams in lists {
            let [first, ..] = upstreams else { continue };
            assert_eq!(gateway.reload(&urls(upstreams)).await.status, 200);
            let before = tokens(first);
            until("the first one is asked", || tokens(first) > before + 5).await;
            let state = status(&gateway);
            assert_eq!(state["url"], first.url());
            let named: Vec<_> = upstreams.iter().map(|upstream| upstream.url()).collect();
            let shown = state["endpoints"].as_array().unwrap().iter();
            let shown: Vec<_> = shown.map(|end| end["url"].as_str().unwrap()).collect();
            assert_eq!(shown, named);
        }
        over.store(true, SeqCst);
    };
    let ((), answered) = futures_util::future::join(reloads, join_all(clients)).await;
    assert!(
        answered.iter().all(|answered| *answered > 0),
        "{answered:?}"
    );
    let hit = gateway.get(&warm).await;
    assert!(
        hit.must("cache-status").starts_with("ordgate; hit"),
        "{hit:?}"
    );
    until_idle(&gateway, "reloads").await;
}

#[tokio::test]
async fn requests_under_way_are_answered_by_the_endpoint_they_were_sent_to() {
    let [one, other] = pair();
    let gateway = Setup::before(&one).keys("a-key").start();
    let gate = Gate::new();
    one.once(TOKEN, Reply::json(r#"{"from":"one"}"#).behind(&gate));
    let mut client = gateway.start_get(TOKEN).await;
    one.until_requests(1).await;
    assert_eq!(gateway.reload(&urls(&[&other])).await.status, 200);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    gate.open();
    assert_eq!(client.answer("GET").await.text(), r#"{"from":"one"}"#);
    assert_eq!((tokens(&one), tokens(&other)), (1, 1));
    until_idle(&gateway, "reload").await;
}

#[tokio::test]
async fn the_state_of_an_endpoint_outlives_a_reload() {
    let [one, other] = pair();
    let gateway = before_both(&one, &other);
    one.always(Reply::nothing().close());
    for number in 0..11 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!(tokens(&one), 10);
    for upstreams in [&[&other, &one], &[&one, &other]] {
        assert_eq!(gateway.reload(&urls(upstreams)).await.status, 200);
        let state = status(&gateway);
        let broken = state["endpoints"].as_array().unwrap().iter();
        let broken: Vec<_> = broken.filter(|end| end["condition"] == "broken").collect();
        assert_eq!(broken.len(), 1);
        assert_eq!(broken[0]["url"], one.url());
        assert!(broken[0]["sent"].as_u64() >= Some(10), "{state}");
        assert_eq!(gateway.get(&token(20)).await.status, 200);
    }
    assert_eq!(tokens(&one), 10, "it is left alone as before");
}

fn before_both(one: &Upstream, other: &Upstream) -> Gateway {
    let setup = Setup::before_all(&[one, other]).keys("a-key");
    setup.config(SOON).manual().start()
}

#[tokio::test]
async fn status_and_metrics_show_every_endpoint() {
    let upstreams = pair();
    let [one, other] = &upstreams;
    let (low, high) = (height(840_000), height(840_004));
    at_height(one, &low, &low);
    at_height(other, &high, &high);
    let gateway = chained(&upstreams, "upstream.max_in_flight = 9");
    until("it is left", || endpoint_in_use(&gateway) == 1).await;
    let gate = Gate::new();
    other.once(TOKEN, Reply::json("{}").behind(&gate));
    let mut client = gateway.start_get(TOKEN).await;
    until("it is asked", || tokens(other) == 1).await;
    let state = status(&gateway);
    assert_eq!(state["url"], other.url());
    assert_eq!(state["switches"], 1);
    assert_eq!(
        (&state["in_flight"], &state["in_flight_limit"]),
        (&1.into(), &9.into())
    );
    let slots = ["slots", "slots_free", "kept_for_other_clients"].map(|name| &state[name]);
    assert_eq!(slots, [9, 8, 2]);
    let ends = state["endpoints"].as_array().unwrap();
    let rows = [(one, false, "lagging", 0, 4), (other, true, "sound", 1, 0)];
    assert_eq!(ends.len(), rows.len());
    for (end, (upstream, is_asked, condition, in_flight, lag)) in ends.iter().zip(rows) {
        assert_eq!(end["url"], upstream.url());
        assert_eq!(end["selected"], is_asked);
        assert_eq!(end["condition"], condition);
        assert_eq!(end["in_flight"], in_flight);
        assert_eq!(end["lag_blocks"], lag);
        assert!(end["sent"].as_u64().is_some_and(|sent| sent > 0), "{end}");
        assert_eq!(end["failed"], 0);
        let asked = format!(
            "ordgate_upstream_asked{{upstream=\"default\",endpoint=\"{}\"}}",
            upstream.url()
        );
        let value = if is_asked { "1.0" } else { "0.0" };
        assert_eq!(metric(&gateway, &asked).await, value);
    }
    gate.open();
    assert_eq!(client.answer("GET").await.status, 200);
    until_idle(&gateway, "status").await;
}
