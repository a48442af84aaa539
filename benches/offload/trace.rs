//! The trace: what a closed set of clients asks, and when.
//!
//! Clients read what the upstream itself would show them at that moment of the
//! trace, so that the same requests go to every subject, however it answers.
//! Invariant: everything follows from the seed, the length and the rate.
//!
//! | client | share | does |
//! |---|--:|---|
//! | reader | 50 % | opens a block (recent ones, or famous old ones; one in eight by hash), turns its pages, all of one size, stops after a few; opens transactions that it has seen |
//! | front | 12 % | shows the newest block's first page, again and again |
//! | linker | 8 % | comes to a transaction of some block by a link; often goes on to its block, by hash |
//! | poller | 25 % | polls one token each other second; a few poll one that there is not |
//! | waiter | 5 % | asks each second for a transaction of the next block until it is there, ten times at most |
//! | wallet | with `--rest`, a third of all | shows etchings and their holders, balances, and inscriptions with their images, each time another |

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use ordgate::sandbox::Sandbox;

use crate::ask::Ask;
use crate::chance::{Chance, Zipf};
use crate::history::History;

/// Pages that explorers show.
const PAGES: [usize; 5] = [10, 20, 25, 50, 60];
/// Recent blocks in order of their age.
const RECENT: usize = 200;

/// A request at a moment of the trace.
pub(crate) struct Request {
    pub(crate) at: Duration,
    /// Its place in [`Trace::asks`].
    pub(crate) ask: usize,
}

/// All that is asked, in order of time.
pub(crate) struct Trace {
    /// Each once.
    pub(crate) asks: Vec<Ask>,
    pub(crate) requests: Vec<Request>,
    pub(crate) clients: usize,
    pub(crate) length: Duration,
}

/// What all clients have in common.
struct World<'h> {
    history: &'h History,
    recent: Zipf,
    /// Blocks of the beginning, the most famous first.
    famous: Vec<u32>,
    fame: Zipf,
    tickers: Vec<String>,
    ticker: Zipf,
    /// Targets of the rest of the API, the most popular first.
    rest: Vec<String>,
    popular: Zipf,
}

enum Kind {
    Reader(Reader),
    Front,
    Linker(Linker),
    Poller { ticker: String },
    Waiter(Waiter),
    Wallet,
}

#[derive(Default)]
struct Reader {
    /// The page of a block to request next.
    next_page: Option<BlockPage>,
    transaction: Option<String>,
}

struct BlockPage {
    block: String,
    offset: usize,
}

#[derive(Default)]
struct Linker {
    block: Option<String>,
}

#[derive(Default)]
struct Waiter {
    id: Option<String>,
    tries: u32,
}

struct Client {
    kind: Kind,
    chance: Chance,
    page: usize,
}

impl Kind {
    /// Share of all requests, and how long such a client waits between two.
    const MIX: [(f64, Duration); 6] = [
        (0.50, Duration::from_millis(1500)),
        (0.12, Duration::from_millis(2000)),
        (0.08, Duration::from_millis(3000)),
        (0.25, Duration::from_millis(2000)),
        (0.05, Duration::from_millis(1000)),
        // Half as many again as all others.
        (0.50, Duration::from_millis(1000)),
    ];

    fn new(kind: usize, world: &World<'_>, chance: &mut Chance) -> Self {
        match kind {
            0 => Self::Reader(Reader::default()),
            1 => Self::Front,
            2 => Self::Linker(Linker::default()),
            3 => Self::Poller {
                ticker: world.some_ticker(chance),
            },
            4 => Self::Waiter(Waiter::default()),
            _ => Self::Wallet,
        }
    }
}

impl Trace {
    /// Makes a trace; with the rest of the API for a third of all requests, if that is wanted.
    pub(crate) fn new(
        history: &History,
        seed: u64,
        length: Duration,
        (rate, has_rest): (f64, bool),
    ) -> Self {
        let (kinds, rate) = match has_rest {
            true => (6, rate / 1.5),
            false => (5, rate),
        };
        let world = World::new(history, seed);
        let mut clients = Vec::new();
        let mut turns = BinaryHeap::new();
        for (kind, (share, wait)) in Kind::MIX.into_iter().take(kinds).enumerate() {
            let count = (share * rate * wait.as_secs_f64()).ceil() as usize;
            for _ in 0..count {
                let number = clients.len();
                let mut chance = Chance::new(seed.wrapping_mul(1_000_003) + number as u64);
                let kind = Kind::new(kind, &world, &mut chance);
                turns.push(Reverse((wait.mul_f64(chance.share()), number, wait)));
                let page = PAGES[number % PAGES.len()];
                clients.push(Client { kind, chance, page });
            }
        }
        let mut trace = Self {
            asks: Vec::new(),
            requests: Vec::new(),
            clients: clients.len(),
            length,
        };
        let mut places = HashMap::new();
        while let Some(Reverse((at, number, wait))) = turns.pop() {
            if at >= length {
                break;
            }
            let client = &mut clients[number];
            if let Some(ask) = client.next_request(&world, history.at(at)) {
                let ask = *places.entry(ask).or_insert_with_key(|ask| {
                    trace.asks.push(ask.clone());
                    trace.asks.len() - 1
                });
                trace.requests.push(Request { at, ask });
            }
            turns.push(Reverse((at + client.chance.around(wait), number, wait)));
        }
        trace
    }
}

impl<'h> World<'h> {
    fn new(history: &'h History, seed: u64) -> Self {
        let first = &history.versions()[0];
        let tip = first.tip().height;
        let standing = (0..=tip).rev();
        let mut famous: Vec<_> = standing
            .take_while(|height| first.hash_at(*height).is_some())
            .collect();
        let mut chance = Chance::new(seed ^ 0x6661_6d6f_7573);
        famous.sort_by_cached_key(|_| (chance.share() * 1e15) as u64);
        let tickers: Vec<_> = first
            .examples()
            .tokens
            .iter()
            .filter_map(|path| Some(path.rsplit_once('/')?.1.to_owned()))
            .collect();
        let rest = rest(first);
        Self {
            history,
            popular: Zipf::new(rest.len(), 0.8),
            rest,
            recent: Zipf::new(RECENT, 1.1),
            fame: Zipf::new(famous.len(), 1.0),
            famous,
            ticker: Zipf::new(tickers.len(), 1.0),
            tickers,
        }
    }

    fn some_ticker(&self, chance: &mut Chance) -> String {
        if chance.happens(0.05) {
            return format!("nosuch{}", self.ticker.pick(chance) % 5);
        }
        self.tickers[self.ticker.pick(chance)].clone()
    }

    fn some_block(&self, version: usize, chance: &mut Chance) -> u32 {
        if chance.happens(0.6) {
            let tip = self.history.versions()[version].tip().height;
            return tip.saturating_sub(self.recent.pick(chance) as u32);
        }
        self.famous[self.fame.pick(chance)]
    }

    fn hash(&self, version: usize, height: u32) -> Option<String> {
        self.history.versions()[version].hash_at(height)
    }

    /// A transaction of the block that comes next, once it is there.
    fn next_transaction(&self, version: usize, chance: &mut Chance) -> Option<String> {
        let next = self.history.versions()[version].tip().height + 1;
        let later = &self.history.versions()[version..];
        let then = later.iter().find(|then| then.hash_at(next).is_some())?;
        chance.one_of(&then.transactions_at(next)).cloned()
    }
}

/// Targets of the rest of the API, in an order that mixes their kinds. The inscriptions are of
/// blocks that no reorg of the trace reaches.
fn rest(sandbox: &Sandbox) -> Vec<String> {
    let examples = sandbox.examples();
    let names = [
        "UNCOMMONGOODS",
        "GATEKEEPERCOIN",
        "SLOWTRAINNORTH",
        "PAPERBOATFLEET",
    ];
    let etchings = names.into_iter().flat_map(|name| {
        let one = format!("/runes/v1/etchings/{name}");
        let holders = format!("{one}/holders");
        [one, format!("{holders}?limit=10&offset=10"), holders]
    });
    let balances = (0..60).map(|at| format!("/ordinals/v1/brc-20/balances/bc1q{at}"));
    let ids = examples.transactions.iter().take(20);
    let inscriptions = ids.flat_map(|path| {
        let id = path.split('/').nth(4).unwrap_or_default();
        let one = format!("/ordinals/v1/inscriptions/{id}i0");
        [format!("{one}/content"), one]
    });
    let list = ["/runes/v1/etchings", "/runes/v1/etchings?offset=10"].map(str::to_owned);
    let all = etchings.chain(balances).chain(inscriptions);
    let mut all: Vec<_> = all.chain(list).collect();
    let mut chance = Chance::new(0x7265_7374);
    all.sort_by_cached_key(|_| (chance.share() * 1e15) as u64);
    all
}

impl Client {
    /// Its next request, if it has one.
    fn next_request(&mut self, world: &World<'_>, version: usize) -> Option<Ask> {
        let (chance, page) = (&mut self.chance, self.page);
        match &mut self.kind {
            Kind::Reader(reader) => Some(reader.next_request(world, version, chance, page)),
            Kind::Front => {
                let tip = world.history.versions()[version].tip().height;
                Some(block_page(tip.to_string(), page, 0))
            }
            Kind::Linker(linker) => linker.next_request(world, version, chance, page),
            Kind::Poller { ticker } => Some(Ask::Token {
                ticker: ticker.clone(),
            }),
            Kind::Waiter(waiter) => waiter.next_request(world, version, chance, page),
            Kind::Wallet => Some(Ask::Rest(world.rest[world.popular.pick(chance)].clone())),
        }
    }
}

impl Reader {
    fn next_request(
        &mut self,
        world: &World<'_>,
        version: usize,
        chance: &mut Chance,
        page: usize,
    ) -> Ask {
        if let Some(id) = self.transaction.take() {
            return transaction_page(id, page);
        }
        let BlockPage { block, offset } = self.next_page.take().unwrap_or_else(|| {
            let height = world.some_block(version, chance);
            let hash = chance.happens(0.125);
            let hash = hash.then(|| world.hash(version, height)).flatten();
            BlockPage {
                block: hash.unwrap_or_else(|| height.to_string()),
                offset: 0,
            }
        });
        let ask = block_page(block.clone(), page, offset);
        let shown = world.history.page(version, &ask.to_string());
        if chance.happens(0.35) {
            let item = chance.one_of(&shown.results);
            self.transaction = item.map(|item| item.location.tx_id.clone());
        }
        let offset = offset + page;
        // Some readers turn one page too many.
        let more = offset < shown.total || (shown.total > 0 && chance.happens(0.05));
        if more && chance.happens(0.7) {
            self.next_page = Some(BlockPage { block, offset });
        }
        ask
    }
}

impl Linker {
    fn next_request(
        &mut self,
        world: &World<'_>,
        version: usize,
        chance: &mut Chance,
        page: usize,
    ) -> Option<Ask> {
        if let Some(block) = self.block.take() {
            return Some(block_page(block, page, 0));
        }
        let height = world.some_block(version, chance);
        let all = world.history.versions()[version].transactions_at(height);
        // A block's first transactions are linked to more than others.
        let first = &all[..all.len().min(20)];
        let id = chance.one_of(first)?.clone();
        if chance.happens(0.5) {
            self.block = world.hash(version, height);
        }
        Some(transaction_page(id, page))
    }
}

impl Waiter {
    fn next_request(
        &mut self,
        world: &World<'_>,
        version: usize,
        chance: &mut Chance,
        page: usize,
    ) -> Option<Ask> {
        let id = match self.id.take() {
            Some(id) => id,
            None => {
                self.tries = 0;
                world.next_transaction(version, chance)?
            }
        };
        self.tries += 1;
        let ask = transaction_page(id.clone(), page);
        let shown = world.history.page(version, &ask.to_string());
        if shown.total == 0 && self.tries < 10 {
            self.id = Some(id);
        }
        Some(ask)
    }
}

fn block_page(block: String, limit: usize, offset: usize) -> Ask {
    Ask::Block {
        block,
        limit,
        offset,
    }
}

fn transaction_page(id: String, limit: usize) -> Ask {
    Ask::Transaction {
        id,
        limit,
        offset: 0,
    }
}
