//! A simulation of routes in mode `respect`: resources change, answers come in
//! pieces, late, or not at all, and clients ask, leave and read slowly at random.
//! Each answer is checked against the resources' history.
//!
//! Everything follows from a seed:
//!
//! ```text
//! ORDGATE_SIM_SEED=17 cargo test --test simulation plain
//! ```

mod events;
pub(crate) mod origin;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use ordgate::clock::Clock;
use ordgate::config::Config;
use ordgate::gateway::Gateway;
use ordgate::serve;
use ordgate::upstream::{Answer, Failure, ProviderKeys, UpstreamClient};
use ordgate::wire::body::BodyError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::dice::Dice;
use crate::stand_in::StandIn;

/// Milliseconds since the play began.
type Time = u64;

const CONFIG: &str = r#"
    builtin_routes = false
    upstream.url = "http://127.0.0.1:9"
    upstream.max_body_bytes = "1KiB"
    limit.enabled = false
    [[route]]
    name = "all"
    path = "/{rest:*}"
    methods = ["*"]
    query = "any"
    headers = "all"
    cache = { mode = "respect", stale_if_error = "20s" }
"#;

/// How stale an answer may be where the origin fails, or its answer is not there in time, in
/// milliseconds.
const IF_ERROR: Time = 20_000;

/// The longest that a client may wait for the beginning of its answer.
const PATIENCE: Time = 100_000;

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    control: &'static str,
    /// How long an answer may be used, in milliseconds; `None` for one that is
    /// private to its client.
    lasts: Option<Time>,
    tagged: bool,
    varies: bool,
    length: usize,
    /// Whether it has a content-length.
    sized: bool,
}

const SHORT: Kind = Kind {
    control: "max-age=2",
    lasts: Some(2_000),
    tagged: true,
    varies: false,
    length: 300,
    sized: true,
};

const KINDS: [Kind; 8] = [
    SHORT,
    Kind {
        tagged: false,
        sized: false,
        ..SHORT
    },
    Kind {
        varies: true,
        ..SHORT
    },
    Kind {
        control: "max-age=1, stale-while-revalidate=3",
        lasts: Some(4_000),
        ..SHORT
    },
    // Stored, and validated for each client.
    Kind {
        control: "no-cache",
        lasts: Some(0),
        ..SHORT
    },
    Kind {
        control: "private",
        lasts: None,
        ..SHORT
    },
    Kind {
        control: "no-store",
        lasts: None,
        sized: false,
        ..SHORT
    },
    // Too large to be stored, which shows only as it comes.
    Kind {
        length: 3_000,
        sized: false,
        ..SHORT
    },
];

impl Kind {
    /// Whether requests for it at the same time share one answer.
    fn is_shared(&self) -> bool {
        self.lasts.is_some_and(|lasts| lasts > 0) && self.length < 1024
    }
}

/// A client's request and its state.
struct Sent {
    resource: usize,
    accept: &'static str,
    at: Time,
    /// Whether it wants no stored answer.
    fresh: bool,
    held: Option<String>,
    over: bool,
}

/// A request that the origin has received.
struct Asked {
    resource: usize,
    accept: String,
    tag: Option<String>,
    at: Time,
    /// Whether anyone else could have its answer.
    plain: bool,
    /// When it was evaluated, and what it found.
    version: Option<usize>,
    reply: Option<oneshot::Sender<Result<Answer, Failure>>>,
    body: Option<mpsc::UnboundedSender<Result<Bytes, BodyError>>>,
    rest: Vec<Bytes>,
    over: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Client,
    Change,
    Evaluate(usize),
    Piece(usize),
    Leave(usize),
}

/// What a client has received, and when its head came.
struct Reply {
    client: usize,
    at: Time,
    status: StatusCode,
    etag: Option<String>,
    how: String,
    body: Result<Bytes, ()>,
}

/// What a play may have besides.
#[derive(Clone, Copy, Debug)]
struct Weather {
    failures: u64,
    breaks: u64,
    impatient: u64,
    latency: Time,
    pace: Time,
    length: Time,
}

impl Weather {
    /// Whether the origin may fail or break off.
    const fn fails(&self) -> bool {
        self.failures > 0 || self.breaks > 0
    }
}

struct Play {
    dice: Dice,
    weather: Weather,
    now: Time,
    clock: Clock,
    gateway: Arc<Gateway>,
    origin: StandIn,
    agenda: BTreeMap<(Time, u64), Event>,
    planned: u64,
    /// When each version of a resource began, by resource.
    versions: Vec<Vec<Time>>,
    asked: Vec<Asked>,
    sent: Vec<Sent>,
    tasks: Vec<AbortHandle>,
    replies: Arc<Mutex<Vec<Reply>>>,
    present: Arc<AtomicU64>,
    tags: HashMap<usize, String>,
    /// Answers that are one client's own, by the request that brought them.
    own: HashSet<usize>,
    answers: u64,
    /// What has happened, where a history is wanted.
    log: Option<Vec<String>>,
}

/// Plays a seed; returns the number of answers.
fn play(seed: u64, keeps_log: bool) -> Result<u64, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut play = Play::new(seed);
        play.log = keeps_log.then(Vec::new);
        let played = play.run().await;
        let log = play.log.unwrap_or_default().join("\n");
        played
            .map(|()| play.answers)
            .map_err(|fault| format!("{log}\n{fault}"))
    })
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x706c_6169_6e00);
        let calm = Weather {
            failures: 0,
            breaks: 0,
            impatient: 5,
            latency: 60,
            pace: 30,
            length: 15_000,
        };
        let weather = match dice.between(0, 3) {
            0 => calm,
            1 => Weather {
                latency: 900,
                pace: 400,
                ..calm
            },
            2 => Weather {
                failures: 20,
                breaks: 10,
                impatient: 15,
                ..calm
            },
            _ => Weather {
                latency: 300,
                pace: 1_500,
                impatient: 20,
                failures: 5,
                ..calm
            },
        };
        let (clock, origin) = (Clock::manual(), StandIn::default());
        let asked: Arc<dyn UpstreamClient> = Arc::new(origin.clone());
        let keys = ProviderKeys::default();
        let config = Config::parse("simulation", CONFIG).unwrap();
        let process = serve::Process::new(&config, clock.clone()).unwrap();
        let gateway = serve::build(config, &keys, &process, None, Some(&asked))
            .unwrap()
            .0;
        let mut play = Self {
            dice,
            weather,
            now: 0,
            clock,
            gateway,
            origin,
            agenda: BTreeMap::new(),
            planned: 0,
            versions: vec![vec![0]; KINDS.len()],
            asked: Vec::new(),
            sent: Vec::new(),
            tasks: Vec::new(),
            replies: Arc::default(),
            present: Arc::default(),
            tags: HashMap::new(),
            own: HashSet::new(),
            answers: 0,
            log: None,
        };
        play.plan(0, Event::Client);
        play.plan(500, Event::Change);
        play
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>6} {}", self.now, what()));
        }
    }

    fn plan(&mut self, after: Time, event: Event) {
        self.planned += 1;
        self.agenda.insert((self.now + after, self.planned), event);
    }

    async fn run(&mut self) -> Result<(), String> {
        while let Some((&(time, nth), &event)) = self.agenda.first_key_value() {
            while self.now < time {
                self.pass((time - self.now).min(250)).await?;
            }
            self.agenda.remove(&(time, nth));
            self.happen(event);
            self.settle().await?;
        }
        // What is not answered by now waits for its deadline.
        for _ in 0..PATIENCE / 250 {
            if self.sent.iter().all(|sent| sent.over) {
                break;
            }
            self.pass(250).await?;
        }
        if let Some(at) = self.sent.iter().position(|sent| !sent.over) {
            return Err(format!("nobody answers client {at}"));
        }
        match self.gateway.fill.collapse.is_empty() {
            true => Ok(()),
            false => Err("a fetch runs that nobody waits for".to_owned()),
        }
    }

    async fn pass(&mut self, time: Time) -> Result<(), String> {
        self.now += time;
        self.present
            .store(self.now, std::sync::atomic::Ordering::Relaxed);
        let time = Duration::from_millis(time);
        self.clock.advance(time);
        tokio::time::advance(time).await;
        self.settle().await
    }

    /// Lets everything go on that can, and looks at what came of it.
    async fn settle(&mut self) -> Result<(), String> {
        let tasks = tokio::runtime::Handle::current();
        let (mut still, mut before) = (0, (0, 0, 0));
        while still < 4 {
            tokio::task::yield_now().await;
            let asked = self.origin.asked().len();
            let replies = self.replies.lock().unwrap().len();
            let after = (asked, replies, tasks.metrics().num_alive_tasks());
            still = if before == after { still + 1 } else { 0 };
            before = after;
        }
        let mut passed = std::mem::take(&mut *self.origin.asked());
        passed.sort_by(|one, other| one.text.cmp(&other.text));
        for passed in passed {
            self.meet(passed)?;
        }
        let mut replies = std::mem::take(&mut *self.replies.lock().unwrap());
        replies.sort_by_key(|reply| reply.client);
        for reply in replies {
            self.judge(reply)?;
        }
        Ok(())
    }

    /// Checks an answer against the history of its resource.
    fn judge(&mut self, reply: Reply) -> Result<(), String> {
        let sent = &mut self.sent[reply.client];
        if std::mem::replace(&mut sent.over, true) {
            return Ok(());
        }
        let (asked_at, resource) = (sent.at, sent.resource);
        let may_be_stale = !sent.fresh;
        self.tell(|| {
            format!(
                "client {} has {} since {}, {}; {}",
                reply.client,
                reply.status,
                reply.at,
                reply.how,
                reply.body.is_ok()
            )
        });
        let wrong = |what: &str| {
            format!(
                "{what}: client {} requested {resource} at {asked_at} and got {} at {} ({})",
                reply.client, reply.status, reply.at, reply.how
            )
        };
        let Some(version) = self.version(&reply).map_err(wrong)? else {
            return Ok(());
        };
        // It must have been current recently enough.
        let lasts = KINDS[resource].lasts;
        let mut slack = lasts.filter(|_| may_be_stale).unwrap_or(0);
        if lasts.is_some() && reply.how.contains("stale-if-error") {
            slack += IF_ERROR;
        }
        let versions = &self.versions[resource];
        let until: Time = versions.get(version + 1).copied().unwrap_or(Time::MAX);
        if until.saturating_add(slack) < asked_at || versions[version] > reply.at {
            return Err(wrong(&format!("version {version} was over at {until}")));
        }
        self.answers += 1;
        Ok(())
    }

    /// The version of the resource that a reply has; `None` for a failure that may
    /// happen, else what is wrong.
    fn version(&mut self, reply: &Reply) -> Result<Option<usize>, &'static str> {
        let sent = &self.sent[reply.client];
        let (resource, kind) = (sent.resource, KINDS[sent.resource]);
        let fails = self.weather.fails();
        let Ok(body) = &reply.body else {
            // Only what the origin broke off, or was read too slowly, ends so.
            return match fails || self.weather.pace > 1_000 || kind.length > 1024 {
                true => Ok(None),
                false => Err("broken off"),
            };
        };
        match reply.status {
            StatusCode::NOT_MODIFIED => {
                let held = sent.held.as_ref().filter(|_| sent.held == reply.etag);
                let tag = held.ok_or("not its tag")?.trim_matches('"');
                Ok(Some(tag.split('-').nth(1).unwrap().parse().unwrap()))
            }
            StatusCode::OK => {
                if body.len() != kind.length {
                    return Err("not whole");
                }
                let text = std::str::from_utf8(body).unwrap();
                let parts: Vec<&str> = text.splitn(5, ' ').collect();
                if parts[0] != resource.to_string() || kind.varies && parts[2] != sent.accept {
                    return Err("another's answer");
                }
                if kind.lasts.is_none() && !self.own.insert(parts[3].parse::<usize>().unwrap()) {
                    return Err("an answer that was one client's own");
                }
                if let Some(tag) = &reply.etag {
                    self.tags.insert(resource, tag.clone());
                }
                Ok(Some(parts[1].parse().unwrap()))
            }
            status if status.is_server_error() && fails => Ok(None),
            _ => Err("a status"),
        }
    }
}

#[test]
fn plain_routes_answer_with_current_versions() {
    let one = crate::number("ORDGATE_SIM_SEED");
    let (from, to) = match one {
        Some(seed) => (seed, seed + 1),
        None => (0, crate::number("ORDGATE_SIM_SEEDS").unwrap_or(100)),
    };
    let mut answers = 0;
    for seed in from..to {
        match play(seed, one.is_some()) {
            Ok(own) => answers += own,
            Err(fault) => panic!(
                "seed {seed}: {fault}\nplay it again: ORDGATE_SIM_SEED={seed} cargo test --test simulation plain"
            ),
        }
    }
    assert!(answers > (to - from) * 100, "{answers} answers");
}
