//! One play: events in an order that the seed decides. Time stands still while any
//! task can run, and then moves to the next event.

mod requests;
mod upstream;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use ordgate::clock::Clock;
use ordgate::config::Config;
use ordgate::gateway::Gateway;
use ordgate::reason::Reason;
use ordgate::upstream::{Answer, Failure, ProviderKeys, UpstreamClient};
use ordgate::wire::body::BodyError;
use ordgate::{probe, serve};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::check::{Judge, Reply, Tally};
use crate::dice::Dice;
use crate::stand_in::StandIn;
use crate::weather::{SETUPS, Setup, Weather};
use crate::world::{ORDINALS, RUNES, TICKERS, Thing, Time, World};

/// An event.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A client asks something.
    Client,
    /// The chain grows, or is reorganised.
    Chain,
    /// An indexer takes a step.
    Index(usize),
    /// The ordinals indexer writes the tokens of a tip that it has had for a while.
    Write,
    /// The upstream decides on an answer's tag.
    Tag(usize),
    /// It looks the body up.
    Body(usize),
    /// The answer comes.
    Deliver(usize),
    /// The end of its body comes, which came without it.
    End(usize),
    /// The request fails.
    Fail(usize),
    /// An operator purges something.
    Purge,
    /// A client goes away.
    Leave(usize),
    /// Probes begin to fail, or cease to.
    Cloud(bool),
}

/// How far behind the endpoint is that is behind.
pub(crate) const BEHIND: Time = 2_500;

/// The longest step of time, so that timers fire nearly on time.
const STRIDE: Time = 250;

pub(crate) struct Play {
    dice: Dice,
    weather: Weather,
    world: World,
    now: Time,
    clock: Clock,
    gateway: Arc<Gateway>,
    stand_in: StandIn,
    agenda: BTreeMap<(Time, u64), Event>,
    planned: u64,
    /// The order of all that happens.
    nth: u64,
    /// Where the answers to the upstream's requests are waited for.
    waiting: Vec<Option<oneshot::Sender<Result<Answer, Failure>>>>,
    /// The answers whose bodies have not ended.
    coming: HashMap<usize, mpsc::UnboundedSender<Result<Bytes, BodyError>>>,
    clouded: bool,
    clients: Vec<AbortHandle>,
    replies: Arc<Mutex<Vec<(usize, Reply)>>>,
    judge: Judge,
    tags: HashMap<String, HeaderValue>,
    log: Option<Vec<String>>,
}

/// The counts of a play, or what failed.
pub(crate) type Outcome = Result<Tally, String>;

/// Plays a seed; with `tells`, a history is kept. Everything follows from the seed
/// but the order in which tokio wakes tasks that wait for one answer, on which no
/// check depends.
pub(crate) fn play(seed: u64, keeps_log: bool) -> Outcome {
    history(seed, keeps_log).0
}

/// Plays a seed, and tells what has happened.
pub(crate) fn history(seed: u64, keeps_log: bool) -> (Outcome, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut play = Play::new(seed, keeps_log);
        let ended = play.run().await;
        (
            ended.map(|()| play.judge.tally),
            play.log.unwrap_or_default(),
        )
    })
}

impl Play {
    fn new(seed: u64, keeps_log: bool) -> Self {
        let mut dice = Dice::new(seed);
        let weather = Weather::of(&mut dice);
        let world = World::new(&mut dice, weather.deep);
        let clock = Clock::manual();
        let stand_in = StandIn::default();
        let asked: Arc<dyn UpstreamClient> = Arc::new(stand_in.clone());
        let config = config(&weather.setup);
        let keys = ProviderKeys::default();
        let process = serve::Process::new(&config, clock.clone()).unwrap();
        let gateway = serve::build(config, &keys, &process, None, Some(&asked))
            .unwrap()
            .0;
        let mut play = Self {
            judge: Judge::new(weather),
            dice,
            weather,
            world,
            now: 0,
            clock,
            gateway,
            stand_in,
            agenda: BTreeMap::new(),
            planned: 0,
            nth: 0,
            waiting: Vec::new(),
            coming: HashMap::new(),
            clouded: false,
            clients: Vec::new(),
            replies: Arc::default(),
            tags: HashMap::new(),
            log: keeps_log.then(|| vec![format!("{weather:?}")]),
        };
        play.plan(0, Event::Client);
        play.plan(100, Event::Chain);
        for tip in [ORDINALS, RUNES] {
            play.plan(50, Event::Index(tip));
        }
        if weather.purge_every > 0 {
            play.plan(weather.purge_every, Event::Purge);
        }
        if weather.clouds {
            let begins = play.dice.between(0, weather.length / 2);
            play.plan(begins, Event::Cloud(true));
        }
        play
    }

    fn plan(&mut self, after: Time, event: Event) {
        self.planned += 1;
        self.agenda.insert((self.now + after, self.planned), event);
    }

    fn tick(&mut self) -> u64 {
        self.nth += 1;
        self.nth
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>7} {}", self.now, what()));
        }
    }

    async fn run(&mut self) -> Result<(), String> {
        let fill = &self.gateway.fill;
        let probes = [0, 1].map(|tip| tokio::spawn(probe::watch(fill.clone(), tip)));
        self.settle().await?;
        while let Some((&(time, nth), &event)) = self.agenda.first_key_value() {
            if self.now < time {
                self.pass((time - self.now).min(STRIDE)).await?;
                continue;
            }
            self.agenda.remove(&(time, nth));
            if self.now >= self.weather.length {
                for probe in &probes {
                    probe.abort();
                }
            }
            self.happen(event).await?;
        }
        self.settle().await?;
        // Nothing is under way any more, so nobody may be waiting.
        if let Some(unanswered) = self.judge.unanswered() {
            return Err(format!("nobody answers {unanswered}"));
        }
        match self.gateway.fill.collapse.is_empty() {
            true => Ok(()),
            false => Err("a key is under way and nobody asks for it".to_owned()),
        }
    }

    async fn pass(&mut self, time: Time) -> Result<(), String> {
        self.now += time;
        let time = Duration::from_millis(time);
        self.clock.advance(time);
        tokio::time::advance(time).await;
        self.settle().await
    }

    /// Lets everything go on that can, and looks at what came of it.
    async fn settle(&mut self) -> Result<(), String> {
        let tasks = tokio::runtime::Handle::current();
        let mut still = 0;
        let mut before = (0, 0, 0);
        while still < 3 {
            tokio::task::yield_now().await;
            let asked = self.stand_in.asked().len();
            let replies = self.replies.lock().unwrap().len();
            let after = (asked, replies, tasks.metrics().num_alive_tasks());
            still = if before == after { still + 1 } else { 0 };
            before = after;
        }
        self.meet()?;
        let mut replies = std::mem::take(&mut *self.replies.lock().unwrap());
        replies.sort_by_key(|(client, _)| *client);
        for (client, reply) in replies {
            self.tell(|| {
                // Who of those that waited has asked is tokio's choice, and a
                // refusal has a number of its own.
                let status = reply.cache_status.replace("; collapsed", "");
                let text = match reply.status.is_server_error() {
                    true => "",
                    false => reply.text(),
                };
                format!(
                    "client {client} gets {} {status:?} {:?}: {text}",
                    reply.status, reply.cache_control
                )
            });
            let sent = self.judge.client(client).text.clone();
            if reply.status == StatusCode::OK
                && let Some(tag) = &reply.etag
            {
                self.tags.insert(sent, tag.clone());
            }
            let chain = &self.gateway.fill.chain;
            let known = |height| chain.hash_at(RUNES as u16, height);
            self.judge.judge(&self.world, client, reply, known)?;
        }
        Ok(())
    }

    async fn happen(&mut self, event: Event) -> Result<(), String> {
        let over = self.now >= self.weather.length;
        match event {
            // What drives the play ends with it.
            Event::Client | Event::Chain | Event::Purge if over => {}
            Event::Client => self.clients_come(),
            Event::Chain => self.chain_changes(),
            Event::Purge => {
                self.purge();
                let next = self.dice.around(self.weather.purge_every);
                self.plan(next, Event::Purge);
            }
            Event::Index(tip) => self.index(tip, over),
            Event::Write => {
                self.tell(|| "ordinals writes its tokens".to_owned());
                self.world.write(self.now);
            }
            Event::Tag(id) => {
                let version = self.version_for(id);
                self.judge.tagged(id, version);
                let next = self.dice.around(self.weather.latency[1]);
                self.plan(next, Event::Body(id));
            }
            Event::Body(id) => {
                let version = self.version_for(id);
                self.judge.looked_up(&self.world, id, version, self.now);
                let next = self.dice.around(self.weather.latency[2]);
                self.plan(next, Event::Deliver(id));
            }
            Event::Deliver(id) => self.deliver(id),
            Event::End(id) => drop(self.coming.remove(&id)),
            Event::Fail(id) => self.fail(id),
            Event::Leave(client) => {
                if self.judge.leaves(client) {
                    self.tell(|| format!("client {client} goes away"));
                    self.clients[client].abort();
                }
            }
            Event::Cloud(begins) => {
                self.clouded = begins && !over;
                self.tell(|| format!("probes fail: {begins}"));
                if !over {
                    let lasts = self.dice.between(4_000, 30_000);
                    self.plan(lasts, Event::Cloud(!begins));
                }
            }
        }
        self.settle().await?;
        if let Event::Deliver(id) = event {
            self.record_delivery(id);
        }
        Ok(())
    }

    fn clients_come(&mut self) {
        // Now and then several at once, so that their requests meet.
        let several = if self.dice.percent(15) { 4 } else { 1 };
        for _ in 0..several {
            self.ask();
        }
        let next = self.dice.around(self.weather.client_every);
        self.plan(next, Event::Client);
    }

    fn chain_changes(&mut self) {
        let what = match self.dice.percent(self.weather.reorgs) {
            true => self.world.reorganise(&mut self.dice, self.weather.deep),
            false => {
                self.world.mine(&mut self.dice);
                format!("a block: {}", self.world.tip())
            }
        };
        self.tell(|| what);
        let next = self.dice.around(self.weather.block_every);
        self.plan(next, Event::Chain);
    }

    fn index(&mut self, tip: usize, over: bool) {
        let manner = match over {
            true => (self.weather.deep, 0),
            false => (self.weather.deep, self.weather.rewinds),
        };
        let (now, dice) = (self.now, &mut self.dice);
        let was_unwritten = self.world.is_unwritten;
        if let Some(what) = self.world.index(tip, now, dice, manner) {
            self.tell(|| what);
        }
        if self.world.is_unwritten && !was_unwritten {
            let most = self.weather.setup.live_ttl.min(4_000).saturating_sub(100);
            let after = self.dice.between(100, most);
            self.plan(after, Event::Write);
        }
        let next = 1 + self.dice.around(self.weather.lag);
        if !over || !self.world.is_level(tip) {
            self.plan(next, Event::Index(tip));
        }
    }

    /// The version of which the upstream answers a request now.
    fn version_for(&self, id: usize) -> usize {
        let asked = self.judge.asked_of(id);
        let behind = if asked.is_behind { BEHIND } else { 0 };
        let time = self.now.saturating_sub(behind);
        self.world.at_time(asked.target.tip(), time)
    }

    fn fail(&mut self, id: usize) {
        self.tell(|| format!("upstream {id} fails"));
        let failure = match self.dice.percent(50) {
            true => Failure::new(Reason::ConnectionClosed),
            false => Failure::status(Reason::ServerError, StatusCode::INTERNAL_SERVER_ERROR),
        };
        self.judge.failed(id);
        self.reply(id, Err(failure));
    }

    /// Records what ordgate knows of the chain after an answer of the upstream.
    fn record_delivery(&mut self, id: usize) {
        self.judge.learned(&self.world, id);
    }
}

fn config(setup: &Setup) -> Config {
    thread_local! {
        static READ: RefCell<Vec<Config>> = const { RefCell::new(Vec::new()) };
    }
    READ.with_borrow_mut(|read| {
        if read.is_empty() {
            let parse = |setup: &Setup| Config::parse("simulation", &setup.text()).unwrap();
            *read = SETUPS.iter().map(parse).collect();
        }
        let at = SETUPS.iter().position(|own| own == setup).unwrap();
        read[at].clone()
    })
}

/// A short description of a thing, for messages.
pub(crate) fn brief(world: &World, thing: Thing) -> String {
    match thing {
        Thing::List(block, tx) => {
            let block = &world.blocks[block];
            let of = if tx.is_some() {
                "a transaction in "
            } else {
                ""
            };
            format!("{of}block {} {}", block.height, &block.hash[8..14])
        }
        Thing::Nothing => "nothing".to_owned(),
        Thing::Token(token, figures) => format!("{} {figures:?}", TICKERS[token]),
        Thing::Rest(block, count) => {
            format!("the rest of {}, {count} blocks", world.blocks[block].height)
        }
        Thing::NotFound => "not found".to_owned(),
        Thing::Refused => "refused".to_owned(),
    }
}
