//! One play: what happens, in an order that the seed decides. Time stands still
//! while anything can go on by itself, and then goes to the next thing.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use ordgate::cache::purge::Purge;
use ordgate::clock::Clock;
use ordgate::config::Config;
use ordgate::gateway::{Gateway, Session};
use ordgate::pages::BodyIndex;
use ordgate::probe;
use ordgate::serve;
use ordgate::upstream::answer::Answer;
use ordgate::upstream::client::resolver::Names;
use ordgate::upstream::{Failure, Priority, ProviderKeys, UpstreamClient};
use ordgate::wire::activity::Activity;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::check::{Judge, Reply, Sent, Told};
use crate::dice::Dice;
use crate::stand_in::{Asked, StandIn};
use crate::tally::Tally;
use crate::weather::{SETUPS, Setup, Weather};
use crate::world::{ORDINALS, REFUSED, RUNES, Subject, TICKERS, Target, Thing, Time, World};

/// What may happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A client asks something.
    Client,
    /// The chain grows, or is reorganised.
    Chain,
    /// An indexer takes a step.
    Index(usize),
    /// The upstream decides on an answer's tag.
    Tag(usize),
    /// It looks the body up.
    Body(usize),
    /// The answer comes.
    Deliver(usize),
    /// The request fails.
    Fail(usize),
    /// An operator purges something.
    Purge,
    /// A client goes away.
    Leave(usize),
    /// Probes begin to fail, or cease to.
    Cloud(bool),
}

/// The longest that time goes at once, so that what waits for a time of its own
/// hardly oversleeps.
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
    clouded: bool,
    clients: Vec<AbortHandle>,
    replies: Arc<Mutex<Vec<(usize, Reply)>>>,
    judge: Judge,
    tags: HashMap<String, HeaderValue>,
    log: Option<Vec<String>>,
}

/// What a play has shown: what was counted, or what was wrong.
pub(crate) type Outcome = Result<Tally, String>;

/// Plays a seed; `tells` where a history is wanted. It follows from the seed but
/// for one thing: whom of several that wait for one answer tokio wakes first.
/// That decides nothing that is judged.
pub(crate) fn play(seed: u64, tells: bool) -> Outcome {
    history(seed, tells).0
}

/// Plays a seed, and tells what has happened.
pub(crate) fn history(seed: u64, tells: bool) -> (Outcome, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut play = Play::new(seed, tells);
        let ended = play.run().await;
        (
            ended.map(|()| play.judge.tally),
            play.log.unwrap_or_default(),
        )
    })
}

impl Play {
    fn new(seed: u64, tells: bool) -> Self {
        let mut dice = Dice::new(seed);
        let weather = Weather::of(&mut dice);
        let world = World::new(&mut dice, weather.deep);
        let clock = Clock::manual();
        let stand_in = StandIn::default();
        let asked: Arc<dyn UpstreamClient> = Arc::new(stand_in.clone());
        let config = config(&weather.setup);
        let keys = ProviderKeys::default();
        let gateway = serve::gateway(
            config,
            &keys,
            &Names::default(),
            clock.clone(),
            Some(&asked),
        )
        .unwrap();
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
            clouded: false,
            clients: Vec::new(),
            replies: Arc::default(),
            tags: HashMap::new(),
            log: tells.then(|| vec![format!("{weather:?}")]),
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
            self.judge.judge(&self.world, client, reply)?;
        }
        Ok(())
    }

    /// Plans what becomes of new requests to the upstream.
    fn meet(&mut self) -> Result<(), String> {
        // Which of several tasks goes on first is not ours to say; so those who
        // ask at one moment are put in an order that is the seed's alone.
        let mut asked = std::mem::take(&mut *self.stand_in.asked());
        asked.sort_by(|one, other| one.text.cmp(&other.text));
        for Asked {
            text,
            target,
            priority,
            reply,
        } in asked
        {
            let (id, nth) = (self.waiting.len(), self.tick());
            self.waiting.push(Some(reply));
            self.tell(|| format!("upstream {id} is asked {text} ({priority:?})"));
            self.judge
                .asked(&self.world, id, text, target, priority, nth, self.now)?;
            let [tag, _, _] = self.weather.latency;
            let is_probe = priority == Priority::Probe;
            let fails = match is_probe {
                true => self.clouded || self.dice.percent(self.weather.failures / 2),
                false => self.dice.percent(self.weather.failures),
            };
            let first = self.dice.around(tag);
            match fails {
                true => self.plan(first + 10, Event::Fail(id)),
                false => self.plan(first, Event::Tag(id)),
            }
        }
        Ok(())
    }

    async fn happen(&mut self, event: Event) -> Result<(), String> {
        let over = self.now >= self.weather.length;
        match event {
            Event::Client if over => {}
            Event::Client => {
                // Several at once now and then: they meet on their way.
                let several = if self.dice.percent(15) { 4 } else { 1 };
                for _ in 0..several {
                    self.ask();
                }
                let next = self.dice.around(self.weather.client_every);
                self.plan(next, Event::Client);
            }
            Event::Chain if over => {}
            Event::Chain => {
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
            Event::Index(tip) => {
                let leaps = self.weather.deep;
                let (now, dice) = (self.now, &mut self.dice);
                if let Some(what) = self.world.index(tip, now, dice, leaps) {
                    self.tell(|| what);
                }
                let next = 1 + self.dice.around(self.weather.lag);
                if !over || !self.world.is_level(tip) {
                    self.plan(next, Event::Index(tip));
                }
            }
            Event::Tag(id) => {
                let version = self.world.at(self.judge.asked_of(id).target.tip());
                self.judge.tagged(id, version);
                let next = self.dice.around(self.weather.latency[1]);
                self.plan(next, Event::Body(id));
            }
            Event::Body(id) => {
                let version = self.world.at(self.judge.asked_of(id).target.tip());
                self.judge.looked_up(&self.world, id, version, self.now);
                let next = self.dice.around(self.weather.latency[2]);
                self.plan(next, Event::Deliver(id));
            }
            Event::Deliver(id) => self.deliver(id),
            Event::Fail(id) => {
                self.tell(|| format!("upstream {id} fails"));
                let failure = match self.dice.percent(50) {
                    true => Failure::Terminated,
                    false => Failure::ServerError {
                        status: StatusCode::INTERNAL_SERVER_ERROR,
                        retry_after: None,
                    },
                };
                self.judge.failed(id);
                self.reply(id, Err(failure));
            }
            Event::Purge if over => {}
            Event::Purge => {
                self.purge();
                let next = self.dice.around(self.weather.purge_every);
                self.plan(next, Event::Purge);
            }
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
            let nth = self.tick();
            let chain = &self.gateway.fill.chain;
            let hash = |tip: usize, height| chain.hash_at(tip as u16, height);
            let height = |tip: usize| chain.tip(tip as u16);
            let epoch = chain.epoch(ORDINALS as u16);
            let seen = self
                .judge
                .learned(&self.world, id, nth, epoch, hash, height);
            if let Some(seen) = seen {
                self.tell(|| seen);
            }
        }
        Ok(())
    }

    fn reply(&mut self, id: usize, with: Result<Answer, Failure>) {
        if let Some(reply) = self.waiting[id].take() {
            // Who asked may have gone.
            drop(reply.send(with));
        }
    }

    fn deliver(&mut self, id: usize) {
        let nth = self.tick();
        let chain = &self.gateway.fill.chain;
        let hash = |tip: usize, height| chain.hash_at(tip as u16, height);
        let told = self.judge.delivered(&self.world, id, nth, self.now, hash);
        let Told {
            status,
            content_type,
            body,
            tag,
            what,
        } = told;
        self.tell(|| format!("upstream {id} answers {status} {tag} {what}"));
        let index = BodyIndex::read(body.as_bytes()).unwrap_or_default();
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            content_type: content_type.try_into().unwrap(),
            body: Bytes::from(body),
            index,
            etag: Some(tag.into_bytes().into()),
            endpoint: 0,
            took: Duration::from_millis(self.now - self.judge.asked_of(id).sent),
        };
        self.reply(id, Ok(answer));
    }

    /// A client asks something.
    fn ask(&mut self) {
        let (text, target) = self.question();
        let client = self.clients.len();
        let nth = self.tick();
        let mut request = Request::get(&*text);
        let mut had = None;
        if self.dice.percent(15)
            && let Some(tag) = self.tags.get(&text)
        {
            request = request.header(IF_NONE_MATCH, tag);
            had = Some(tag.clone());
        }
        self.tell(|| format!("client {client} asks {text}"));
        self.judge.sent(Sent::new(text, target, had, nth, self.now));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let activity = Arc::new(Activity::new(self.clock.now()));
        let address = [127, 0, 0, 1].into();
        let session = Arc::new(Session::new(address, client as u64, activity));
        let walk = self.gateway.answer(&session, request);
        let replies = self.replies.clone();
        let task = tokio::spawn(async move {
            let Ok(response) = walk.await;
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let field = |name: &str| {
                let value = head.headers.get(name).map(|value| value.to_str().unwrap());
                value.unwrap_or_default().to_owned()
            };
            let reply = Reply {
                status: head.status,
                body,
                etag: head.headers.get(ETAG).cloned(),
                content_type: field("content-type"),
                cache_status: field("cache-status"),
                cache_control: field("cache-control"),
            };
            replies.lock().unwrap().push((client, reply));
        });
        self.clients.push(task.abort_handle());
        if self.dice.percent(self.weather.impatient) {
            let after = self.dice.around(300);
            self.plan(after, Event::Leave(client));
        }
    }

    /// What a client asks, as it spells it; and what it means.
    fn question(&mut self) -> (String, Target) {
        let dice = &mut self.dice;
        let world = &self.world;
        let chain = &world.chain;
        // How far below the tip somebody asks.
        let depth = |dice: &mut Dice, most: u64| match self.weather.deep {
            true => dice.between(14, 55),
            false => dice.between(0, most).min(dice.between(0, most)),
        };
        let recent = |dice: &mut Dice| {
            let back = depth(dice, 12) as usize;
            chain[chain.len() - 1 - back.min(chain.len() - 1)]
        };
        // Of all that ever were, orphans too, or of the last.
        let any = |dice: &mut Dice| match dice.percent(30) && !self.weather.deep {
            true => dice.below(world.blocks.len()),
            false => recent(dice),
        };
        let (tokens, kind) = (self.weather.tokens, dice.between(0, 99));
        let subject = match dice.between(20, 99) {
            _ if kind < tokens => Subject::Token((*dice.pick(&TICKERS)).to_owned()),
            0..=49 => {
                let tip = world.tip() + 1;
                Subject::Height(tip - depth(dice, 14) as u32)
            }
            50..=64 => Subject::Hash(world.blocks[any(dice)].hash.clone()),
            65 => Subject::Hash(dice.hash()),
            66 => Subject::Tx(dice.hash()),
            67 => Subject::Hash((*dice.pick(&REFUSED)).to_owned()),
            _ => {
                let block = any(dice);
                match &world.blocks[block].txs[..] {
                    [] => Subject::Height(world.blocks[block].height),
                    txs => Subject::Tx(world.tx_id(dice.pick(txs).0).to_owned()),
                }
            }
        };
        let mut target = Target {
            subject,
            limit: 20,
            offset: 0,
            operation: None,
        };
        let mut path = match &target.subject {
            Subject::Token(ticker) if dice.percent(20) => {
                format!("/ordinals/v1/brc-20/tokens/{}", ticker.to_uppercase())
            }
            Subject::Token(ticker) => {
                return (format!("/ordinals/v1/brc-20/tokens/{ticker}"), target);
            }
            Subject::Height(height) => format!("/runes/v1/blocks/{height}/activity?"),
            Subject::Hash(hash) => format!("/runes/v1/blocks/{hash}/activity?"),
            Subject::Tx(tx) => format!("/runes/v1/transactions/{tx}/activity?"),
            Subject::Status(_) => unreachable!("no client asks for it"),
        };
        if matches!(target.subject, Subject::Token(_)) {
            return (path, target);
        }
        if dice.percent(60) {
            target.limit = match dice.percent(20) {
                true => self.weather.setup.window,
                false => dice.between(1, 60).min(dice.between(1, 60)) as usize,
            };
            path.push_str(&format!("limit={}&", target.limit));
        }
        if dice.percent(50) {
            target.offset = dice.between(0, 30).min(dice.between(0, 45)) as usize;
            path.push_str(&format!("offset={}&", target.offset));
        }
        let of_block = matches!(target.subject, Subject::Height(_) | Subject::Hash(_));
        if of_block && dice.percent(12) {
            let operation = *dice.pick(&["mint", "send", "burn"]);
            target.operation = Some(operation.to_owned());
            path.push_str(&format!("operation_type={operation}"));
        }
        (path, target)
    }

    /// An operator purges something that somebody has asked for.
    fn purge(&mut self) {
        let Some(last) = self.clients.len().checked_sub(1) else {
            return;
        };
        let back = self.dice.below(last.min(20) + 1);
        let target = self.judge.client(last - back).target.clone();
        let route = match target.subject {
            Subject::Token(_) => 0,
            Subject::Tx(_) => 1,
            Subject::Height(_) | Subject::Hash(_) | Subject::Status(_) => 2,
        };
        let text = |id: &str| Purge::Text(id.into());
        let path = |path: String| Purge::Path {
            route,
            path: path.into(),
        };
        let purges = match (self.dice.between(0, 9), &target.subject) {
            (0, _) => vec![Purge::All],
            (1, _) => vec![Purge::Route(route)],
            (2, _) => {
                let from = self.world.tip() - self.dice.between(0, 12) as u32;
                vec![Purge::Heights {
                    tip: None,
                    from,
                    to: from + self.dice.between(0, 2) as u32,
                }]
            }
            (3..=5, Subject::Tx(id) | Subject::Hash(id)) => vec![text(id)],
            (_, Subject::Token(ticker)) => {
                vec![path(format!("/ordinals/v1/brc-20/tokens/{ticker}"))]
            }
            (_, Subject::Height(height)) => {
                vec![path(format!("/runes/v1/blocks/{height}/activity"))]
            }
            // As the admin side has it: what a path's answers are cut from goes
            // with them.
            (_, Subject::Hash(hash)) => {
                let own = path(format!("/runes/v1/blocks/{hash}/activity"));
                vec![own, text(hash)]
            }
            (_, Subject::Tx(tx)) => {
                let own = path(format!("/runes/v1/transactions/{tx}/activity"));
                vec![own, text(tx)]
            }
            (_, Subject::Status(_)) => Vec::new(),
        };
        for what in purges {
            self.tell(|| format!("purge {what:?}"));
            let nth = self.tick();
            self.gateway.cache.store().purge(what.clone());
            self.judge.purged(what, nth);
        }
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

/// For what the judge says of a thing.
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
        Thing::NotFound => "not found".to_owned(),
        Thing::Refused => "refused".to_owned(),
    }
}
