//! Compression of answers that were on disk: encoded bodies are in memory only, and are
//! made again after a restart, with the same tags.

use http::{HeaderMap, Method};
use ordgate::sandbox::{Sandbox, Settings};

use super::{compress, count, decoded, tag_in, text};
use crate::chain::{RARELY, block, is_status};
use crate::support::{Gateway, Reply, Setup, Upstream, until};

const GZIP: [(&str, &str); 1] = [("accept-encoding", "gzip")];

const ROUTES: &str = r#"
    [[route]]
    name = "timed"
    path = "/timed/{name}"
    params.name = { type = "string" }
    cache = { mode = "override", times = { 200 = "1h" } }
    [[route]]
    name = "typed"
    path = "/typed/{name}"
    params.name = { type = "string" }
    cache = { mode = "respect" }
"#;

/// An upstream with a chain, and any other answers. Of those at `fixed`, it forbids
/// transformations.
fn upstream(sandbox: &Sandbox, fixed: &[String]) -> Upstream {
    let upstream = Upstream::start();
    let (sandbox, fixed) = (sandbox.clone(), fixed.to_vec());
    upstream.usually(move |seen| {
        let target = seen.target();
        let (mut fields, body) = match target.starts_with("/t") {
            true => {
                let fields = "content-type: application/json\r\netag: \"one\"\r\n".to_owned();
                (fields, text(8000).into_bytes())
            }
            false => {
                let answer = sandbox.answer(&Method::GET, &target, &HeaderMap::new());
                let own = answer.headers.iter();
                let own = own.filter(|(name, _)| *name != "content-length");
                let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                    format!("{name}: {}\r\n", value.to_str().unwrap())
                };
                (own.map(line).collect(), answer.body.to_vec())
            }
        };
        let is_fixed = fixed.iter().any(|fixed| target.starts_with(fixed));
        let control = if is_fixed { ", no-transform" } else { "" };
        fields.push_str(&format!("cache-control: max-age=3600{control}\r\n"));
        Reply::with(200, &fields, body)
    });
    upstream
}

async fn start(setup: Setup, is_chain: bool) -> Gateway {
    let gateway = setup.start();
    if is_chain {
        let probed = || gateway.tips().iter().all(|tip| tip.probes > 0);
        until("the first probes", probed).await;
    }
    gateway
}

#[tokio::test]
async fn what_was_on_disk_is_compressed_again_with_the_same_tag() {
    let sandbox = Sandbox::new(Settings::default());
    let tip = sandbox.tip().height;
    let own = ["/timed/a", "/typed/a", &block(tip - 20)].map(str::to_owned);
    let fixed = ["/timed/b", "/typed/b", &block(tip - 30)].map(str::to_owned);
    let upstream = upstream(&sandbox, &fixed);
    for (own, fixed) in own.iter().zip(&fixed) {
        let is_chain = !own.starts_with("/t");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        let state = format!("state.path = \"{path}\"\nserver.drain_timeout = \"5s\"");
        let setup = || {
            let setup = Setup::before(&upstream).config(&state).config(RARELY);
            match is_chain {
                true => setup.chain(),
                false => setup.config(ROUTES),
            }
        };
        let gateway = start(setup(), is_chain).await;
        let plain = gateway.get(own).await;
        let tag = plain.must("etag").to_owned();
        compress(&gateway, own, "gzip").await;
        let before = gateway.request("GET", own, &GZIP).await;
        assert_eq!(before.must("etag"), tag_in(&tag, "gzip"));
        gateway.get(fixed).await;
        until("both are written", || {
            gateway.figure("/state_directory/answers/written") >= 2
        })
        .await;
        gateway.end().await;
        let gateway = start(setup(), is_chain).await;
        let sent = upstream.targets().len();
        // From disk, then from memory.
        for detail in [true, false] {
            let answer = gateway.request("GET", own, &GZIP).await;
            let status = answer.must("cache-status");
            assert_eq!(status.ends_with("detail=disk"), detail, "{own}: {status}");
            assert_eq!(
                (answer.must("etag"), answer.field("content-encoding")),
                (&*tag, None)
            );
            assert_eq!(answer.body, plain.body, "{own}");
        }
        until("it is compressed", || count(&gateway, "made") == 1).await;
        let after = gateway.request("GET", own, &GZIP).await;
        assert_eq!(after.must("etag"), before.must("etag"));
        assert_eq!(after.must("content-encoding"), "gzip", "{own}");
        assert_eq!(decoded(&after), plain.body, "{own}");
        for _request in 0..4 {
            let answer = gateway.request("GET", fixed, &GZIP).await;
            assert_eq!(answer.field("content-encoding"), None, "{fixed}");
        }
        // One after it in the same queue is compressed.
        compress(&gateway, own, "zstd").await;
        assert_eq!(count(&gateway, "made"), 2, "{fixed}");
        let asked = upstream.targets().split_off(sent);
        let asked: Vec<_> = asked.iter().filter(|target| !is_status(target)).collect();
        assert!(asked.len() <= 1, "one check of a block at most: {asked:?}");
    }
}
