//! Two upstreams, one for each API: failures of one do not affect the other's
//! routes.
//!
//! The upstreams are the two servers of a sandbox, so that each answer can be
//! compared with the sandbox's own. Only counts are asserted; the gateway's clock
//! moves only when a test moves it.

use std::time::Duration;

use futures_util::future::{join, join_all};
use http::{HeaderMap, Method};
use ordgate::sandbox::{Api, Fault, FaultKind, Sandbox, Settings};
use serde_json::Value;

use crate::support::gateway::split;
use crate::support::{Answer, Gateway, SandboxServer, Setup, token, until, within};

/// Connections for each API, each from an address of its own.
const CLIENTS: usize = 4;

/// Targets that each of them requests.
const QUESTIONS: usize = 36;

/// How long one of them is down, in milliseconds of the gateway's clock: a tip
/// that is to be asked for each minute is no longer known then, and what has
/// ceased to be fresh may stand in yet.
const DOWN: u64 = 150_000;

/// In what way a server fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Its listener and its connections are closed.
    Dies,
    /// It accepts connections, and answers nothing.
    Hangs,
}

/// A sandbox's two servers, and a gateway before them. One of the two is going
/// to fail.
struct Ground {
    sandbox: Sandbox,
    ordinals: SandboxServer,
    runes: SandboxServer,
    gateway: Gateway,
    victim: Api,
    how: How,
}

impl Ground {
    /// The shipped routes, the tips known.
    async fn new(victim: Api, how: How, setup: impl FnOnce(Setup) -> Setup) -> Self {
        let sandbox = Sandbox::new(Settings {
            // So that some requests are always under way.
            latency: Duration::from_millis(5).into(),
            ..Settings::default()
        });
        let [ordinals, runes] =
            [Api::Ordinals, Api::Runes].map(|api| SandboxServer::start(&sandbox, api));
        // Times that are long enough for a busy machine.
        let config = "chain.tip.runes.every = \"60s\"\nchain.tip.ordinals.every = \"60s\"\n\
             limit.enabled = false\ncache.stale_wait = \"30s\"\n\
             upstream = { queue_timeout = \"30s\", first_byte_timeout = \"60s\" }\n\
             upstreams.runes.queue_timeout = \"20ms\"";
        let urls = split(&ordinals.url(), &runes.url());
        let shipped = Setup::alone().chain().config(&urls).config(config);
        let gateway = setup(shipped.manual()).start();
        gateway.until_tips_are_known().await;
        Self {
            sandbox,
            ordinals,
            runes,
            gateway,
            victim,
            how,
        }
    }

    fn server(&self) -> &SandboxServer {
        match self.victim {
            Api::Runes => &self.runes,
            Api::Ordinals | Api::Both => &self.ordinals,
        }
    }

    /// How long the victim's answers are waited for.
    async fn wait_for_victim(&self, time: &str) {
        let upstream = match self.victim {
            Api::Runes => "upstreams.runes",
            // The other has its own.
            Api::Ordinals | Api::Both => "upstreams.runes.first_byte_timeout = \"60s\"\nupstream",
        };
        let change = format!("{upstream}.first_byte_timeout = \"{time}\"");
        let done = self.gateway.reload(&change).await;
        assert_eq!(done.status, 200, "{}", done.text());
    }

    /// The victim fails.
    fn fail(&self) {
        match self.how {
            How::Dies => self.server().stop(),
            How::Hangs => {
                let stall = FaultKind::Stall(Duration::from_secs(600));
                let fault = Fault::once(stall).times(u32::MAX).at(self.victim);
                self.sandbox.fault(fault);
            }
        }
    }

    /// It comes back where it was, and its tip is asked for. What has hung holds its slot until
    /// the connection is closed.
    async fn recover(&self) {
        self.sandbox.clear_faults();
        self.server().stop();
        self.server().resume();
        until("nothing is in flight", || {
            self.gateway.figure("/upstreams/runes/in_flight") == 0
        })
        .await;
        for tip in [0, 1] {
            self.gateway.probe(tip).await;
        }
    }

    /// The other one.
    fn well(&self) -> Api {
        match self.victim {
            Api::Runes => Api::Ordinals,
            Api::Ordinals | Api::Both => Api::Runes,
        }
    }

    /// That an answer is what the sandbox itself says.
    fn is_truth(&self, target: &str, answer: &Answer) {
        let truth = self.sandbox.answer(&Method::GET, target, &HeaderMap::new());
        assert_eq!(answer.status, truth.status.as_u16(), "{target}: {answer:?}");
        assert!(answer.body == truth.body, "{target}: {}", answer.text());
    }

    /// That it is fresh as well.
    fn is_sound(&self, target: &str, answer: &Answer) {
        self.is_truth(target, answer);
        assert!(!is_stale(answer), "{target}: {answer:?}");
    }

    /// An API's upstream in `/status`.
    async fn status(&self, api: Api) -> Value {
        let status = self.gateway.admin("/status").await.json();
        let name = match api {
            Api::Runes => "runes",
            Api::Ordinals | Api::Both => "default",
        };
        status["upstreams"][name].clone()
    }

    /// Checks that nothing has failed at the other upstream.
    async fn costs_the_other_nothing(&self) {
        let status = self.status(self.well()).await;
        assert_eq!(status["failed"], 0, "{status}");
        assert_eq!(status["endpoints"][0]["failed"], 0, "{status}");
        assert_eq!(status["no_slot"], 0, "{status}");
        assert_eq!(status["endpoints"][0]["condition"], "sound", "{status}");
        assert_eq!(status["broken"], 0, "{status}");
        for served in [&self.ordinals, &self.runes] {
            assert_eq!(served.strays(), 0, "{}", served.url());
        }
    }
}

fn is_stale(answer: &Answer) -> bool {
    answer.must("cache-status").contains("stale-if-error")
}

/// Paths of an API: what there is, recent and settled, and what there is not.
fn paths(sandbox: &Sandbox, api: Api) -> Vec<String> {
    let examples = sandbox.examples();
    let tip = sandbox.tip().height;
    match api {
        Api::Runes => {
            let recent = (0..100).map(|below| format!("/runes/v1/blocks/{}/activity", tip - below));
            let transactions = examples.transactions.iter().take(40).cloned();
            recent.chain(transactions).collect()
        }
        Api::Ordinals | Api::Both => {
            let known = examples.tokens.iter().take(40).cloned();
            known.chain((0..100).map(token)).collect()
        }
    }
}

/// Takes every third of the paths away: what is to be stored before.
fn every_third(paths: Vec<String>) -> (Vec<String>, Vec<String>) {
    let numbered = paths.into_iter().enumerate();
    let (warm, cold): (Vec<_>, Vec<_>) = numbered.partition(|(at, _)| at % 3 == 0);
    let only = |list: Vec<(usize, String)>| list.into_iter().map(|(_, path)| path).collect();
    (only(warm), only(cold))
}

/// What each client of an API asks: warm and cold by turns, from a place of its
/// own in either list.
fn questions(warm: &[String], cold: &[String]) -> Vec<Vec<String>> {
    let client = |number: usize| {
        let each = [warm, cold].map(|list| {
            let start = number * list.len() / CLIENTS;
            list.iter().cycle().skip(start).cloned()
        });
        let [warm, cold] = each;
        let pairs = warm.zip(cold).flat_map(|(warm, cold)| [warm, cold]);
        pairs.take(QUESTIONS).collect()
    };
    (0..CLIENTS).map(client).collect()
}

/// What came of a request.
struct Outcome {
    api: Api,
    target: String,
    answer: Answer,
    /// It was sent after the failure.
    late: bool,
}

/// All clients ask at once, round by round, so that no API's load ends before the
/// other's. In the middle one of the upstreams fails, when requests of a round
/// have arrived there and are not yet answered.
async fn load(ground: &Ground, questions: Vec<(Api, Vec<String>)>) -> Vec<Outcome> {
    let mut clients = Vec::new();
    for (number, (api, targets)) in (1..).zip(questions) {
        let from = [127, 0, 1, number];
        let client = ground.gateway.client_from(from).await;
        clients.push((api, client, targets.into_iter()));
    }
    // In odd rounds all targets are cold.
    let middle = QUESTIONS / 4 * 2 + 1;
    let mut outcomes = Vec::new();
    for round in 0..QUESTIONS {
        let before = ground.sandbox.counts_at(ground.victim).total;
        let pending = clients.iter_mut().map(async |(api, client, targets)| {
            let target = targets.next().unwrap();
            let answer = client.get(&target).await;
            Outcome {
                api: *api,
                target,
                answer,
                late: round > middle,
            }
        });
        let strike = async {
            if round == middle {
                let arrived = || ground.sandbox.counts_at(ground.victim).total > before;
                until("a request has arrived", arrived).await;
                ground.fail();
            }
        };
        let (answered, ()) = within("a round", join(join_all(pending), strike)).await;
        outcomes.extend(answered);
    }
    outcomes
}

/// One of the two fails in the middle of a load on both, and comes back.
async fn play(victim: Api, how: How) {
    let ground = Ground::new(victim, how, |setup| setup).await;
    let (mut clients, mut all) = (Vec::new(), Vec::new());
    for api in [Api::Ordinals, Api::Runes] {
        let (warm, cold) = every_third(paths(&ground.sandbox, api));
        for path in &warm {
            ground.is_sound(path, &ground.gateway.get(path).await);
        }
        let each = questions(&warm, &cold).into_iter();
        clients.extend(each.map(|targets| (api, targets)));
        all.extend(warm.into_iter().chain(cold).map(|path| (api, path)));
    }
    if how == How::Hangs {
        ground.wait_for_victim("300ms").await;
    }
    let outcomes = load(&ground, clients).await;
    assert_eq!(outcomes.len(), 2 * CLIENTS * QUESTIONS);
    let (mut late, mut failed) = (0, 0);
    for outcome in &outcomes {
        let Outcome { target, answer, .. } = outcome;
        if outcome.api == ground.well() {
            ground.is_sound(target, answer);
            late += usize::from(outcome.late);
        } else if answer.status < 500 {
            ground.is_truth(target, answer);
        } else {
            assert!((502..=504).contains(&answer.status), "{target}: {answer:?}");
            answer.problem();
            failed += 1;
        }
    }
    assert!(
        late > 20 && failed >= 10,
        "{late} of the other, {failed} failed"
    );
    ground.costs_the_other_nothing().await;
    let status = ground.status(victim).await;
    // What hangs may be a target's own matter.
    let condition = match how {
        How::Dies => "broken",
        How::Hangs => "sound",
    };
    assert_eq!(status["endpoints"][0]["condition"], condition, "{status}");
    assert!(
        status["endpoints"][0]["failed"].as_u64() >= Some(10),
        "{status}"
    );

    // It stays down until its tip is no longer known: what is stored and not
    // final is stale, and stands in; what is not stored fails.
    ground.gateway.advance(DOWN);
    let (mut stale, mut failed) = (0, 0);
    for (api, path) in &all {
        let answer = ground.gateway.get(path).await;
        if *api == ground.well() {
            ground.is_sound(path, &answer);
        } else if answer.status < 500 {
            ground.is_truth(path, &answer);
            stale += usize::from(is_stale(&answer));
        } else {
            failed += 1;
        }
    }
    assert!(stale > 0 && failed > 0, "{stale} stale, {failed} failed");
    ground.costs_the_other_nothing().await;

    ground.wait_for_victim("60s").await;
    // Longer than any failure is remembered.
    ground.gateway.advance(DOWN);
    ground.recover().await;
    for (_, path) in &all {
        ground.is_sound(path, &ground.gateway.get(path).await);
    }
    let status = ground.status(victim).await;
    assert_eq!(status["endpoints"][0]["condition"], "sound", "{status}");
    ground.costs_the_other_nothing().await;
}

#[tokio::test]
async fn tokens_are_served_while_the_runes_upstream_is_down() {
    play(Api::Runes, How::Dies).await;
}

#[tokio::test]
async fn tokens_are_served_while_the_runes_upstream_hangs() {
    play(Api::Runes, How::Hangs).await;
}

/// Requests a second, of one key at both upstreams.
const BUDGET: u8 = 20;
/// What is left of a second while the other upstream hangs.
const LEFT: u8 = 5;
const SECONDS: u8 = 8;

/// Both share a key and its budget. One fails, and clients want more of it each
/// second than the budget has room for. One that hangs is not given up.
async fn share(victim: Api, how: How) {
    let ground = Ground::new(victim, how, |setup| {
        let budget =
            format!("upstream = {{ requests_per_second = {BUDGET}, queue_timeout = \"100ms\" }}");
        setup.keys("the-key").config(&budget)
    })
    .await;
    let mut wanted = paths(&ground.sandbox, victim).into_iter();
    let mut others = paths(&ground.sandbox, ground.well()).into_iter();
    let sent = async || {
        let mut sent = 0;
        for api in [Api::Ordinals, Api::Runes] {
            sent += ground.status(api).await["sent"].as_u64().unwrap();
        }
        sent
    };
    let demand = match how {
        // The breaker opens at the tenth.
        How::Dies => 12,
        How::Hangs => 16,
    };
    ground.fail();
    let mut waiting = Vec::new();
    for second in 0..SECONDS {
        // A request counts until a second after its answer.
        ground.gateway.advance(1_100);
        let before = sent().await;
        // Each client has an address of its own, since of one alone a tenth is
        // kept for others.
        for number in 0..demand {
            let from = [127, 0, 1, second * demand + number + 1];
            let mut client = ground.gateway.client_from(from).await;
            client
                .send_request("GET", &wanted.next().unwrap(), &[])
                .await;
            waiting.push(client);
        }
        for number in 0..LEFT {
            let from = [127, 0, 2, second * LEFT + number + 1];
            let mut client = ground.gateway.client_from(from).await;
            let target = others.next().unwrap();
            ground.is_sound(&target, &client.get(&target).await);
        }
        let spent = sent().await - before;
        assert!(spent <= u64::from(BUDGET), "{spent} in second {second}");
    }
    ground.costs_the_other_nothing().await;
    if how == How::Hangs {
        let status = ground.status(victim).await;
        let held = status["in_flight"].as_u64().unwrap();
        assert!((5..=u64::from(BUDGET - LEFT)).contains(&held), "{status}");
    }
}

#[tokio::test]
async fn runes_that_hang_leave_tokens_some_of_each_second() {
    share(Api::Runes, How::Hangs).await;
}
