//! The truth: a chain that grows and is reorganised, two indexers that follow
//! it each at its own pace, and what they said at any moment of their history.
//!
//! Written without a look at the sandbox, so that the two cannot share a
//! mistake. Blocks are small, and every answer can be asked for again later: an
//! indexer's history is the list of its [`Version`]s.

mod chain;
mod pages;

use std::rc::Rc;

use crate::dice::Dice;

/// Milliseconds since the beginning of a play.
pub(crate) type Time = u64;

/// A block's number in [`World::blocks`].
pub(crate) type BlockId = usize;

/// The height of the first block.
pub(crate) const BASE: u32 = 840_000;

/// The two indexers, in the order in which the configuration has their tips.
pub(crate) const ORDINALS: usize = 0;

pub(crate) const RUNES: usize = 1;

pub(crate) const NAMES: [&str; 2] = ["ordinals", "runes"];

/// The numbers of the routes for the rest of their APIs, and of those of tokens, transactions
/// and blocks, which come after them.
pub(crate) const REST: [u16; 2] = [0, 6];

pub(crate) const TYPED: [u16; 3] = [7, 8, 9];

/// Tickers. The last is never deployed.
pub(crate) const TICKERS: [&str; 5] = ["ordi", "sats", "late", "rats", "none"];

const TOKENS: usize = 4;

pub(crate) struct Block {
    pub(crate) height: u32,
    pub(crate) hash: String,
    pub(crate) timestamp: u64,
    /// In the order of the API: the newest first.
    pub(crate) items: Vec<Item>,
    /// Its transactions: number, and the range of its items.
    pub(crate) txs: Vec<(usize, usize, usize)>,
    /// For each token, how much it mints, and whether it deploys it.
    tokens: [(bool, u64); TOKENS],
}

pub(crate) struct Item {
    text: String,
    operation: &'static str,
}

struct Tx {
    id: String,
    /// What each of its items is.
    operations: Vec<&'static str>,
}

/// A token's figures at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    deploy: BlockId,
    minted: u64,
    count: u64,
}

/// What an indexer says from a moment on.
pub(crate) struct Version {
    pub(crate) begin: Time,
    /// The blocks whose content it keeps_log, lowest first.
    pub(crate) data: Rc<[BlockId]>,
    /// The tip's height as its status has it. While a block is undone or about
    /// to come, it is not yet what the data are.
    pub(crate) height: u32,
    /// The tag of that tip.
    pub(crate) tag: String,
    tokens: [Option<Figures>; TOKENS],
    /// Whether tokens were written that its tip had before.
    pub(crate) is_late: bool,
}

/// What a target is about, at one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A block's list, or that of one of its transactions.
    List(BlockId, Option<usize>),
    /// An empty list.
    Nothing,
    Token(usize, Figures),
    /// A block, and how many the indexer has: of a kind that ordgate does not know.
    Rest(BlockId, usize),
    NotFound,
    /// A block's hash that the upstream does not take for one, whatever the page.
    Refused,
}

/// Hashes that it refuses.
pub(crate) const REFUSED: [&str; 2] = [
    "00000000badbadbadbadbadbadbadbadbadbadbadbadbadbadbadbadbadbadba",
    "00000000dabdabdabdabdabdabdabdabdabdabdabdabdabdabdabdabdabdabda",
];

impl Thing {
    /// The block that an answer about it names.
    pub(crate) fn block(self) -> Option<BlockId> {
        match self {
            Self::List(block, _) => Some(block),
            Self::Token(_, figures) => Some(figures.deploy),
            Self::Nothing | Self::Rest(..) | Self::NotFound | Self::Refused => None,
        }
    }
}

/// A canonical target, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Status(usize),
    Height(u32),
    Hash(String),
    Tx(String),
    Token(String),
    /// What an indexer says of a height on a path of the rest of its API.
    Rest(usize, u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) subject: Subject,
    pub(crate) limit: usize,
    pub(crate) offset: usize,
    pub(crate) operation: Option<String>,
}

impl Target {
    /// Reads a canonical target.
    pub(crate) fn read(text: &str) -> Self {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let mut target = Self {
            subject: Subject::Status(0),
            limit: 20,
            offset: 0,
            operation: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap();
            match name {
                "limit" => target.limit = value.parse().unwrap(),
                "offset" => target.offset = value.parse().unwrap(),
                "any" => {}
                "operation_type" => target.operation = Some(value.to_owned()),
                _ => panic!("the upstream is asked for {text}"),
            }
        }
        let parts: Vec<_> = path.split('/').skip(1).collect();
        target.subject = match parts[..] {
            ["ordinals", "v1", ""] => Subject::Status(ORDINALS),
            ["runes", "v1", ""] => Subject::Status(RUNES),
            [name, "v1", "rest", height] => {
                let tip = NAMES.iter().position(|own| *own == name).unwrap();
                Subject::Rest(tip, height.parse().unwrap())
            }
            ["ordinals", "v1", "brc-20", "tokens", ticker] => Subject::Token(ticker.to_owned()),
            ["runes", "v1", "transactions", tx, "activity"] => Subject::Tx(tx.to_owned()),
            ["runes", "v1", "blocks", block, "activity"] => match block.len() {
                64 => Subject::Hash(block.to_owned()),
                _ => Subject::Height(block.parse().unwrap()),
            },
            _ => panic!("the upstream is asked for {text}"),
        };
        target
    }

    /// The indexer that answers.
    pub(crate) fn tip(&self) -> usize {
        match self.subject {
            Subject::Status(tip) | Subject::Rest(tip, _) => tip,
            Subject::Token(_) => ORDINALS,
            Subject::Height(_) | Subject::Hash(_) | Subject::Tx(_) => RUNES,
        }
    }

    pub(crate) fn is_status(&self) -> bool {
        matches!(self.subject, Subject::Status(_))
    }
}

/// The path of a height in the rest of an indexer's API.
pub(crate) fn rest_path(tip: usize, height: u32) -> String {
    format!("/{}/v1/rest/{height}", NAMES[tip])
}

pub(crate) struct World {
    pub(crate) blocks: Vec<Block>,
    txs: Vec<Tx>,
    /// The chain as the miners have it.
    pub(crate) chain: Vec<BlockId>,
    /// The chain before the last reorg, which may come back.
    before: Vec<BlockId>,
    /// The versions of each indexer, oldest first.
    pub(crate) history: [Vec<Version>; 2],
    /// How many blocks the runes indexer still goes back, one at a time.
    back: u64,
    /// Whether the ordinals indexer has moved its tip and not yet written the tokens.
    pub(crate) is_unwritten: bool,
}

impl World {
    /// A chain of some blocks, and more where reorgs are deep, which both
    /// indexers have.
    pub(crate) fn new(dice: &mut Dice, deep: bool) -> Self {
        let mut world = Self {
            blocks: Vec::new(),
            txs: Vec::new(),
            chain: Vec::new(),
            before: Vec::new(),
            history: [Vec::new(), Vec::new()],
            back: 0,
            is_unwritten: false,
        };
        let more = if deep { 60 } else { 0 };
        for _ in 0..dice.between(10, 18) + more {
            world.mine(dice);
        }
        for tip in [ORDINALS, RUNES] {
            let data: Rc<[BlockId]> = world.chain.as_slice().into();
            world.say(tip, 0, data.clone(), &data);
        }
        world
    }

    pub(crate) fn tip(&self) -> u32 {
        BASE + self.chain.len() as u32 - 1
    }

    pub(crate) fn now(&self, tip: usize) -> &Version {
        self.history[tip].last().unwrap()
    }

    /// The place in its history where an indexer was at a time.
    pub(crate) fn at_time(&self, tip: usize, time: Time) -> usize {
        let after = self.history[tip].partition_point(|version| version.begin <= time);
        after.saturating_sub(1)
    }

    /// An indexer goes a step towards the chain: takes a block, tells of one
    /// before its tip moves, deletes what was undone, or puts something in its
    /// place. Answers with what it did, if anything.
    /// Most often it leaps to the chain at once, where it is to.
    pub(crate) fn index(
        &mut self,
        tip: usize,
        now: Time,
        dice: &mut Dice,
        (leaps, rewinds): (bool, u64),
    ) -> Option<String> {
        if tip == ORDINALS && self.is_unwritten {
            return None;
        }
        if tip == RUNES && (self.back > 0 || dice.percent(rewinds)) {
            return self.rewind(now, dice);
        }
        let at = self.now(tip);
        let (data, height) = (at.data.clone(), at.height);
        let same = data.iter().zip(&self.chain).take_while(|(a, b)| a == b);
        let common = same.count();
        let has = data.len();
        let goal = self.chain.len();
        let halfway = height != BASE + has as u32 - 1 || !self.is_tag_of(tip, &data);
        let (to, moves, what) = if leaps && common < has && dice.percent(80) {
            (goal, true, "leaps to the other branch")
        } else if common < has {
            match dice.percent(60) {
                // A deletion of its own: the tip is still the old one.
                true => (common, dice.percent(20), "deletes what was undone"),
                false => {
                    let more = dice.between(1, (goal - common).max(1) as u64) as usize;
                    (common + more, true, "replaces what was undone")
                }
            }
        } else if halfway {
            // Of a deletion the other half brings blocks, if there are any.
            let more = match goal > has && height >= BASE + has as u32 {
                true => dice.between(0, (goal - has) as u64) as usize,
                false => 0,
            };
            (has + more, true, "has done with it")
        } else if has < goal {
            let more = match dice.percent(30) {
                true => dice.between(1, (goal - has) as u64) as usize,
                false => 1,
            };
            match dice.percent(if tip == ORDINALS { 50 } else { 10 }) {
                true => (has + 1, false, "tells of a block ahead of its tip"),
                false => (has + more, true, "takes blocks"),
            }
        } else {
            return None;
        };
        let data: Rc<[BlockId]> = self.chain[..to.min(goal)].into();
        if moves {
            let before = self.now(tip).tokens;
            self.say(tip, now, data.clone(), &data);
            if tip == ORDINALS && dice.percent(40) {
                self.is_unwritten = true;
                self.history[tip].last_mut().unwrap().tokens = before;
            }
        } else {
            let last = self.history[tip].last().unwrap();
            let version = Version {
                begin: now,
                tokens: self.figures(&data),
                data,
                height: last.height,
                tag: last.tag.clone(),
                is_late: false,
            };
            self.history[tip].push(version);
        }
        let at = self.now(tip);
        Some(format!(
            "{} {what}: data to {}, status {}",
            NAMES[tip],
            BASE + at.data.len() as u32 - 1,
            at.height
        ))
    }

    /// The runes indexer goes back: a block, or many at once.
    fn rewind(&mut self, now: Time, dice: &mut Dice) -> Option<String> {
        let data = self.now(RUNES).data.clone();
        let steps = match self.back {
            0 if data.len() < 50 => return None,
            0 if dice.percent(50) => 40,
            0 => {
                self.back = dice.between(2, 12);
                1
            }
            _ => {
                self.back -= 1;
                1
            }
        };
        let data: Rc<[BlockId]> = data[..data.len() - steps].into();
        self.say(RUNES, now, data.clone(), &data);
        Some(format!(
            "runes goes back {steps}, to {}",
            self.now(RUNES).height
        ))
    }

    /// The ordinals indexer writes the tokens of its tip.
    pub(crate) fn write(&mut self, now: Time) {
        self.is_unwritten = false;
        let last = self.now(ORDINALS);
        let version = Version {
            begin: now,
            data: last.data.clone(),
            height: last.height,
            tag: last.tag.clone(),
            tokens: self.figures(&last.data),
            is_late: true,
        };
        self.history[ORDINALS].push(version);
    }

    /// Whether an indexer is where the chain is.
    pub(crate) fn is_level(&self, tip: usize) -> bool {
        let at = self.now(tip);
        *at.data == *self.chain && at.height == self.tip() && self.is_tag_of(tip, &at.data)
    }

    fn is_tag_of(&self, tip: usize, data: &[BlockId]) -> bool {
        self.now(tip).tag == self.tag(tip, data)
    }

    fn tag(&self, tip: usize, data: &[BlockId]) -> String {
        match tip {
            RUNES => format!("\"{}\"", self.blocks[*data.last().unwrap()].hash),
            _ => {
                let times = data.iter().map(|id| self.blocks[*id].timestamp);
                format!("W/\"{}\"", times.max().unwrap())
            }
        }
    }

    fn say(&mut self, tip: usize, begin: Time, data: Rc<[BlockId]>, of: &[BlockId]) {
        let version = Version {
            begin,
            tokens: self.figures(&data),
            height: BASE + of.len() as u32 - 1,
            tag: self.tag(tip, of),
            data,
            is_late: false,
        };
        self.history[tip].push(version);
    }
}

fn page(limit: usize, offset: usize, total: usize, items: &str) -> String {
    format!(r#"{{"limit":{limit},"offset":{offset},"total":{total},"results":[{items}]}}"#)
}
