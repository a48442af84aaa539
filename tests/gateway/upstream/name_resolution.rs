//! The name of an upstream: one that does not resolve, that has several
//! addresses, or that moves.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use super::endpoint;
use crate::support::upstream::{BESIDE, usual_body};
use crate::support::{Gateway, Reply, Setup, TOKEN, Upstream, token};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const THERE: IpAddr = IpAddr::V4(BESIDE);

/// A gateway before a name, what the directory says of it at the moment (`None` if it
/// fails), and how often it was asked.
struct Ground {
    gateway: Gateway,
    entry: Arc<Mutex<Option<Vec<IpAddr>>>>,
    asked: Arc<AtomicUsize>,
}

impl Ground {
    fn new(upstream: &Upstream, entry: Option<&[IpAddr]>, config: &str) -> Self {
        let entry = Arc::new(Mutex::new(entry.map(<[_]>::to_vec)));
        let asked = Arc::<AtomicUsize>::default();
        let (known, count) = (entry.clone(), asked.clone());
        let port = upstream.address().port();
        let setup = Setup::at(&format!("http://upstream.example:{port}")).names(move |name| {
            assert_eq!(name, "upstream.example");
            count.fetch_add(1, SeqCst);
            let known = known.lock().unwrap().clone();
            known.ok_or_else(|| io::Error::other("no such name"))
        });
        Self {
            gateway: setup.config(config).manual().start(),
            entry,
            asked,
        }
    }

    fn moves(&self, to: IpAddr) {
        *self.entry.lock().unwrap() = Some(vec![to]);
    }

    fn requests(&self) -> usize {
        self.asked.load(SeqCst)
    }

    /// Asks for a token, and checks that there is no answer.
    async fn fails(&self, error: &str) {
        let answer = self.gateway.get(TOKEN).await;
        assert_eq!(answer.status, 502);
        let proxy_status = answer.must("proxy-status");
        assert_eq!(proxy_status, format!("ordgate; error={error}"));
        let problem = answer.problem().to_string();
        assert!(!problem.contains("upstream.example"), "{problem}");
    }
}

#[tokio::test]
async fn a_failed_name_resolution_is_retried_once() {
    let upstream = Upstream::start();
    for (retries, asked) in [(true, 2), (false, 1)] {
        let ground = Ground::new(&upstream, None, &format!("upstream.retry = {retries}"));
        ground.fails("dns_error").await;
        assert_eq!(ground.requests(), asked);
        let endpoint = endpoint(&ground.gateway, 0);
        let last = &endpoint["last_failure"];
        assert_eq!(
            (&endpoint["sent"], &last["reason"]),
            (&0.into(), &"dns".into())
        );
        let cause = last["cause"].as_str().unwrap();
        let says_both = cause.contains("upstream.example") && cause.contains("no such name");
        assert!(says_both, "{cause}");
        ground.moves(HERE);
        assert_eq!(ground.gateway.get(TOKEN).await.text(), usual_body(TOKEN));
    }
    let nowhere = Ground::new(&upstream, Some(&[]), "");
    nowhere.fails("destination_unavailable").await;
}

#[tokio::test]
async fn a_new_connection_uses_the_new_address() {
    for end in ["it ends its connections", "it resets them"] {
        let old = Upstream::start();
        let new = Upstream::start_beside(&old);
        let ground = Ground::new(&old, Some(&[HERE]), "");
        ground.gateway.get(&token(0)).await;
        ground.moves(THERE);
        // The connection that there is, is used on.
        ground.gateway.get(&token(1)).await;
        assert_eq!((old.count(), new.count(), ground.requests()), (2, 0, 1));
        let bye = match end {
            "it resets them" => Reply::nothing().reset(),
            _ => Reply::with(200, "connection: close\r\n", "{}").close(),
        };
        old.once(&token(2), bye);
        for number in 2..5 {
            let answer = ground.gateway.get(&token(number)).await;
            assert_eq!(answer.status, 200, "{end}: {number}");
        }
        assert_eq!((old.count(), ground.requests()), (3, 2), "{end}");
    }
}

#[tokio::test]
async fn of_two_addresses_the_listening_one_is_used() {
    let upstream = Upstream::start();
    for addresses in [[THERE, HERE], [HERE, THERE]] {
        let ground = Ground::new(&upstream, Some(&addresses), "upstream.retry = false");
        for number in 0..3 {
            assert_eq!(ground.gateway.get(&token(number)).await.status, 200);
        }
        assert_eq!(ground.requests(), 1, "one connection, and one look-up");
    }
    let ground = Ground::new(&upstream, Some(&[THERE, THERE]), "");
    ground.fails("connection_refused").await;
}
