//! The name of an upstream: one that does not resolve, that has several
//! addresses, or that moves.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::until_idle;
use crate::support::upstream::{BESIDE, usual_body};
use crate::support::{Gateway, Reply, Setup, TOKEN, Upstream, token};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const THERE: IpAddr = IpAddr::V4(BESIDE);

/// What the DNS answers at the moment; `None` if it fails.
type Entry = Option<Vec<IpAddr>>;

/// A gateway before a name, what the directory says of it, and how often it was
/// asked.
struct Ground {
    gateway: Gateway,
    entry: Arc<Mutex<Entry>>,
    asked: Arc<AtomicUsize>,
}

impl Ground {
    fn new(port: u16, entry: Entry, config: &str) -> Self {
        let entry = Arc::new(Mutex::new(entry));
        let asked = Arc::<AtomicUsize>::default();
        let (known, count) = (entry.clone(), asked.clone());
        let gateway = Setup::at(&format!("http://upstream.example:{port}"))
            .names(move |name| {
                assert_eq!(name, "upstream.example");
                count.fetch_add(1, SeqCst);
                let known = known.lock().unwrap().clone();
                known.ok_or_else(|| io::Error::other("no such name"))
            })
            .config(config)
            .manual()
            .start();
        Self {
            gateway,
            entry,
            asked,
        }
    }

    fn moves(&self, entry: Entry) {
        *self.entry.lock().unwrap() = entry;
    }

    fn requests(&self) -> usize {
        self.asked.load(SeqCst)
    }
}

#[tokio::test]
async fn a_failed_name_resolution_is_retried_once() {
    let upstream = Upstream::start();
    let port = upstream.address().port();
    for (retries, asked) in [(true, 2), (false, 1)] {
        let config = format!("upstream.retry = {retries}");
        let ground = Ground::new(port, None, &config);
        let answer = ground.gateway.get(TOKEN).await;
        assert_eq!(answer.status, 502);
        assert_eq!(answer.must("proxy-status"), "ordgate; error=dns_error");
        assert_eq!(answer.field("retry-after"), None);
        let problem = answer.problem().to_string();
        assert!(!problem.contains("upstream.example"), "{problem}");
        assert_eq!(ground.requests(), asked);
        let endpoint = &ground.gateway.status()["upstream"]["endpoints"][0];
        let (sent, last) = (&endpoint["sent"], &endpoint["last_failure"]);
        assert_eq!((sent, &last["reason"]), (&0.into(), &"dns".into()));
        let cause = last["cause"].as_str().unwrap();
        assert!(
            cause.contains("upstream.example") && cause.contains("no such name"),
            "{cause}"
        );
        until_idle(&ground.gateway, "dns").await;
        // It is there again.
        ground.moves(Some(vec![HERE]));
        assert_eq!(ground.gateway.get(TOKEN).await.text(), usual_body(TOKEN));
    }
}

#[tokio::test]
async fn names_that_keep_failing_open_the_breaker() {
    let config = "upstream.retry = false";
    let ground = Ground::new(1, None, config);
    for number in 0..10 {
        assert_eq!(ground.gateway.get(&token(number)).await.status, 502);
    }
    let answer = ground.gateway.get(TOKEN).await;
    assert_eq!((answer.status, ground.requests()), (503, 10));
    assert!((1..=5).contains(&answer.number("retry-after")));
}

#[tokio::test]
async fn a_name_without_an_address_gets_502() {
    let ground = Ground::new(1, Some(Vec::new()), "");
    let answer = ground.gateway.get(TOKEN).await;
    assert_eq!(answer.status, 502);
    let proxy_status = answer.must("proxy-status");
    assert_eq!(proxy_status, "ordgate; error=destination_unavailable");
    until_idle(&ground.gateway, "no address").await;
}

#[tokio::test]
async fn a_new_connection_uses_the_new_address() {
    let old = Upstream::start();
    let new = Upstream::start_beside(&old);
    let ground = Ground::new(old.address().port(), Some(vec![HERE]), "");
    assert_eq!(ground.gateway.get(&token(0)).await.status, 200);
    ground.moves(Some(vec![THERE]));
    // The connection that there is, is used on.
    assert_eq!(ground.gateway.get(&token(1)).await.status, 200);
    assert_eq!((old.count(), new.count(), ground.requests()), (2, 0, 1));
    // The old one ends it, as one does that is being shut down.
    let bye = Reply::with(200, "connection: close\r\n", "{}").close();
    old.once(&token(2), bye);
    assert_eq!(ground.gateway.get(&token(2)).await.status, 200);
    for number in 3..6 {
        assert_eq!(ground.gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!((old.count(), new.count(), ground.requests()), (3, 3, 2));
}

#[tokio::test]
async fn an_address_that_stops_answering_is_replaced_within_one_request() {
    let old = Upstream::start();
    let new = Upstream::start_beside(&old);
    let ground = Ground::new(old.address().port(), Some(vec![HERE]), "");
    assert_eq!(ground.gateway.get(&token(0)).await.status, 200);
    ground.moves(Some(vec![THERE]));
    old.always(Reply::nothing().reset());
    let answer = ground.gateway.get(&token(1)).await;
    assert_eq!(answer.text(), usual_body(&token(1)));
    assert_eq!((old.count(), new.count()), (2, 1));
}

#[tokio::test]
async fn of_two_addresses_the_listening_one_is_used() {
    let upstream = Upstream::start();
    let port = upstream.address().port();
    for addresses in [[THERE, HERE], [HERE, THERE]] {
        let asked = upstream.count();
        let ground = Ground::new(port, Some(addresses.to_vec()), "upstream.retry = false");
        for number in 0..10 {
            assert_eq!(ground.gateway.get(&token(number)).await.status, 200);
        }
        assert_eq!(upstream.count() - asked, 10);
        assert_eq!(ground.requests(), 1, "one connection, and one look-up");
        until_idle(&ground.gateway, "two addresses").await;
    }
    // If neither listens, that is reported.
    let ground = Ground::new(port, Some(vec![THERE, THERE]), "");
    let answer = ground.gateway.get(TOKEN).await;
    let proxy_status = answer.must("proxy-status");
    assert_eq!(proxy_status, "ordgate; error=connection_refused");
}
