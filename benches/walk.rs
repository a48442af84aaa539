//! What a rule, a look-up and a whole walk cost, without sockets:
//! `cargo bench --bench walk`. Compare within one run; the machine's noise is
//! larger than most changes between two.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty};
use ordgate::cache::key::Key;
use ordgate::cache::policy::{Mode, Policy};
use ordgate::cache::validator::{etag, none_match_fails};
use ordgate::cache::{Cache, Decision, StoredResponse};
use ordgate::chain::Chain;
use ordgate::clock::{Clock, Moment};
use ordgate::config::Config;
use ordgate::connections::Activity;
use ordgate::gateway::{ResponseFuture, Session};
use ordgate::sandbox::{Sandbox, Settings};
use ordgate::serve::{LoadedConfig, Options, Server};
use ordgate::supervisor::InheritedSockets;
use ordgate::upstream::keys::ApiKey;
use ordgate::upstream::{ProviderKeys, SearchedBody};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::Divan::from_args().sample_size(256).main();
}

const BLOCK: &str = "/runes/v1/blocks/840000/activity";

/// A body of 1 MiB on its way to a client, in frames of 16 KiB, searched for so
/// many keys: bytes in a second.
#[divan::bench(args = [0, 1, 4, 16], sample_size = 4)]
fn search_a_body(bencher: divan::Bencher<'_, '_>, keys: usize) {
    let list: Vec<_> = (0..keys)
        .map(|n| format!("{n:02}k9Zq-ordgate-s3cret-7Xw2"))
        .collect();
    let keys: Arc<[ApiKey]> = ApiKey::list(&list.join(",")).unwrap_or_default().into();
    let item = br#"{"id":"840000:12","amount":"1200345.5","address":"bc1q7Xw2k9Zq"},"#;
    let frame: Bytes = item.iter().copied().cycle().take(16 << 10).collect();
    let frames = VecDeque::from(vec![frame; 64]);
    bencher
        .counter(divan::counter::BytesCount::new(1_usize << 20))
        .with_inputs(|| {
            let body = Frames(frames.clone()).map_err(Into::into).boxed_unsync();
            SearchedBody::new(body, keys.clone(), Moment::default())
        })
        .bench_local_values(|mut body| {
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut cx) {
                divan::black_box(frame).expect("there is no key in it");
            }
        });
}

struct Frames(VecDeque<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
    }
}

/// A rule: route, validation, canonical form.
#[divan::bench]
fn canonical_request(bencher: divan::Bencher<'_, '_>) {
    let config = Config::parse("built in", "").expect("the shipped configuration is valid");
    bencher.bench_local(|| {
        let found = config
            .routes
            .find(divan::black_box(BLOCK))
            .expect("a route");
        found
            .route
            .canonical(&found.captures, Some("limit=20&offset=40"))
    });
}

/// A rule: a client's If-None-Match of three tags.
#[divan::bench]
fn if_none_match(bencher: divan::Bencher<'_, '_>) {
    let tag = etag(b"{}");
    let mut fields = HeaderMap::new();
    let list = format!(
        "\"one\", W/\"two\", {}",
        tag.to_str().expect("a tag is ASCII")
    );
    fields.insert(
        "if-none-match",
        HeaderValue::try_from(list).expect("a list of tags"),
    );
    bencher.bench_local(|| none_match_fails(divan::black_box(&fields), &tag));
}

/// A look-up among so many stored responses.
#[divan::bench(args = [1, 10_000, 100_000])]
fn look_up(bencher: divan::Bencher<'_, '_>, entries: u64) {
    let cache = Cache::new(1 << 30, Arc::new(Chain::without_tips()));
    let clock = Clock::machine();
    let policy = Policy {
        mode: Mode::Override,
        ..Policy::default()
    };
    let key = |n: u64| {
        let mut key = Key::begin(0);
        let target = format!("/runes/v1/transactions/{n:064x}/activity?limit=20&offset=0");
        key.buffer().extend_from_slice(target.as_bytes());
        key
    };
    for n in 0..entries {
        let mut stored = StoredResponse::of_json(vec![b'x'; 600]);
        stored.received = clock.now();
        stored.lifetime = Duration::from_secs(3600);
        cache.store().insert(&key(n), Arc::new(stored));
    }
    // A stride that visits all, so that the processor's caches do not help.
    let keys: Vec<_> = (0..entries.min(4096))
        .map(|n| key(n * 7919 % entries))
        .collect();
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 1) % keys.len();
        matches!(
            cache.decide(&keys[at], &policy, |_| true, clock.now()),
            Decision::Serve { .. }
        )
    });
}

/// The whole walk of a hit, from a parsed request to an answer.
#[divan::bench(args = [false, true])]
fn walk(bencher: divan::Bencher<'_, '_>, limited: bool) {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [limit]\nenabled = {limited}\nrequests_per_minute = 60000000\nburst = 60000000\n"
    );
    let server = Server::start(Options {
        loaded: LoadedConfig {
            config: Config::parse("bench", &text).expect("a valid configuration"),
            keys: ProviderKeys::default(),
            admin_token: None,
        },
        config_name: "bench".to_owned(),
        load: Box::new(|| Err(Vec::new())),
        sandbox: Some(Sandbox::new(Settings::default())),
        // It stands still, so that what is stored stays fresh.
        clock: Clock::manual(),
        sockets: InheritedSockets::default(),
    })
    .expect("the server starts");
    let gateway = server.first.clone();
    let activity = Arc::new(Activity::new(&gateway.clock));
    let session = Arc::new(Session::new([127, 0, 0, 1].into(), 1, activity));
    let request = || {
        let request = Request::get("/ordinals/v1/brc-20/tokens/ordi").header("host", "127.0.0.1");
        request.body(Empty::<Bytes>::new()).expect("a request")
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let first = gateway.answer(&session, request()).await;
        assert!(first.is_ok_and(|first| first.status().is_success()));
    });
    bencher.with_inputs(request).bench_local_values(|request| {
        let walk = gateway.answer(&session, request);
        assert!(matches!(walk, ResponseFuture::Done(_)), "a hit");
        walk
    });
    server.drain(Duration::ZERO);
    server.wait();
}
