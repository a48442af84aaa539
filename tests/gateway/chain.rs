//! Mode `chain` from outside: which responses stay valid while blocks are added,
//! undone and replaced.
//!
//! Where content matters, the upstream is the sandbox, and ordgate's answers must
//! equal the sandbox's byte for byte. Where behaviour matters, a scripted upstream
//! uses the sandbox's model: it may drop tags, hold answers back, fail, or cap
//! limits.
//!
//! Tests trigger probes; by themselves they run once at the start and then after an
//! hour.

mod alias;
mod derive;
mod events;
mod fallback;
mod finality;
mod live;
mod pages;
mod reorg;
mod rest;
mod tips;

use ordgate::sandbox::{Sandbox, Settings};

use crate::support::upstream::Seen;
use crate::support::{Answer, Gateway, Reply, Setup, Upstream, until};

/// The tips by their numbers.
const ORDINALS: u16 = 0;
const RUNES: u16 = 1;

/// Tests trigger probes.
pub(crate) const RARELY: &str = "chain.tip.runes.every = \"1h\"\nchain.tip.ordinals.every = \"1h\"";

/// The statuses of both indexers.
const STATUSES: [&str; 2] = ["/ordinals/v1/", "/runes/v1/"];

/// The reference's `cache-control` of what is final.
const IMMUTABLE: &str = "public, max-age=2592000, immutable";

/// A chain, and a gateway that answers for it.
struct Ground {
    sandbox: Sandbox,
    gateway: Gateway,
}

impl Ground {
    /// The shipped routes before a sandbox of 200 blocks, the tips known.
    async fn new() -> Self {
        Self::with(Settings::default(), "").await
    }

    /// The same before a sandbox that is like this, with more configuration.
    async fn with(settings: Settings, config: &str) -> Self {
        let sandbox = Sandbox::new(settings);
        let setup = Setup::alone().chain().sandbox(&sandbox);
        let gateway = setup.config(RARELY).config(config).manual().start();
        settled(&gateway).await;
        Self { sandbox, gateway }
    }

    /// Asks both indexers for their tips, and for the blocks that are in doubt then.
    async fn probe(&self) {
        probe_all(&self.gateway).await;
    }

    /// What the upstream itself would say now.
    fn truth(&self, target: &str) -> ordgate::sandbox::Answer {
        self.sandbox.answer(target)
    }

    /// Asks, and sees to it that the answer is the upstream's own.
    async fn same(&self, target: &str) -> Answer {
        let answer = self.gateway.get(target).await;
        self.is_truth(target, &answer);
        answer
    }

    fn is_truth(&self, target: &str, answer: &Answer) {
        let truth = self.truth(target);
        assert_eq!(answer.status, truth.status.as_u16(), "{target}");
        // A page is too long to be shown whole.
        let shown =
            |body: &[u8]| String::from_utf8_lossy(&body[..body.len().min(400)]).into_owned();
        assert!(
            answer.body == truth.body,
            "{target}: {}\nin place of {}",
            shown(&answer.body),
            shown(&truth.body)
        );
    }

    /// Requests for anything but a status so far.
    fn requests(&self) -> u64 {
        let counts = self.sandbox.counts();
        counts.total - counts.status
    }

    /// Asks; sees to it that the answer is the upstream's own, and that it cost
    /// so many requests.
    async fn costs(&self, target: &str, requests: u64) -> Answer {
        let before = self.requests();
        let answer = self.same(target).await;
        let cost = self.requests() - before;
        assert_eq!(cost, requests, "{target}: {}", answer.must("cache-status"));
        answer
    }

    /// The height of the tip.
    fn tip(&self) -> u32 {
        self.sandbox.tip().height
    }
}

/// A block's activity by its height or its hash.
pub(crate) fn block(block: impl std::fmt::Display) -> String {
    format!("/runes/v1/blocks/{block}/activity")
}

pub(crate) fn transaction(id: &str) -> String {
    format!("/runes/v1/transactions/{id}/activity")
}

/// A tip of the chain, as `/status` shows it.
fn tip_of(gateway: &Gateway, tip: u16) -> crate::support::gateway::Tip {
    gateway.tips().swap_remove(usize::from(tip))
}

/// Waits until the probes of the start have ended, well or not.
async fn settled(gateway: &Gateway) {
    for tip in [ORDINALS, RUNES] {
        until("the first probe", || tip_of(gateway, tip).probes > 0).await;
    }
}

/// Asks both indexers for their tips, and then for the blocks that new ones put in doubt.
async fn probe_all(gateway: &Gateway) {
    for tip in [ORDINALS, RUNES] {
        gateway.probe(tip).await;
        gateway.check_blocks(tip).await;
    }
}

/// What a sandbox says to a request, as a reply to be tampered with.
fn own(sandbox: &Sandbox, target: &str) -> (u16, String, Vec<u8>) {
    let answer = sandbox.answer(target);
    let fields = answer
        .headers
        .iter()
        .filter(|(name, _)| *name != "content-length");
    let fields = fields.map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()));
    (
        answer.status.as_u16(),
        fields.collect(),
        answer.body.to_vec(),
    )
}

/// The reply of a sandbox.
pub(crate) fn reply(sandbox: &Sandbox, target: &str) -> Reply {
    let (status, fields, body) = own(sandbox, target);
    Reply::with(status, &fields, body)
}

/// The same with another tag, or without one.
fn retagged(sandbox: &Sandbox, target: &str, tag: Option<&str>) -> Reply {
    let (status, fields, body) = own(sandbox, target);
    let lines = fields.split_inclusive("\r\n");
    let mut fields: String = lines.filter(|line| !line.starts_with("etag:")).collect();
    if let Some(tag) = tag {
        fields.push_str(&format!("etag: {tag}\r\n"));
    }
    Reply::with(status, &fields, body)
}

/// A scripted upstream with a sandbox's answers.
pub(crate) fn acting(sandbox: &Sandbox) -> Upstream {
    let upstream = Upstream::start();
    let sandbox = sandbox.clone();
    upstream.usually(move |seen| reply(&sandbox, &seen.target()));
    upstream
}

/// The shipped routes before a scripted upstream, the first probes ended.
pub(crate) async fn before(upstream: &Upstream, config: &str) -> Gateway {
    let setup = Setup::before(upstream).chain().config(RARELY);
    let gateway = setup.config(config).manual().start();
    settled(&gateway).await;
    gateway
}

/// The requests' targets, without status paths.
fn targets(upstream: &Upstream) -> Vec<String> {
    let mut targets = upstream.targets();
    targets.retain(|target| !is_status(target));
    targets
}

pub(crate) fn is_status(target: &str) -> bool {
    STATUSES.contains(&target)
}

/// Whether a request is for a status.
fn for_status(seen: &Seen) -> bool {
    is_status(&seen.target())
}
