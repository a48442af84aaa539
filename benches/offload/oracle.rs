//! The oracle: how many upstream requests the trace would need of a cache that
//! is told what no cache can know.
//!
//! It asks at the moment of a client's request, and only for what it cannot
//! know already. It holds windows of 60 items and makes any page of them; it
//! knows which height a hash stands at, and what a total says about pages past
//! the end; it answers for a transaction from its block's windows where they
//! hold its whole run. It has no limit of memory, and all its requests take no
//! time.

use std::collections::HashMap;
use std::ops::Range;

use crate::ask::Ask;
use crate::history::{Change, Digest, Truth};
use crate::trace::Trace;

/// Items in a window.
const WINDOW: usize = 60;

/// What the oracle is told of changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Of each change of any answer: a stored one is good until the truth for
    /// it is another.
    Answers,
    /// Of the chain: which blocks stand. A stored answer that names one is good
    /// while it stands; a token, or what is absent, until the next change.
    Chain,
}

/// Upstream requests by kind.
#[derive(Clone, Copy, Default)]
pub(crate) struct Needs {
    pub(crate) tokens: u64,
    pub(crate) transactions: u64,
    pub(crate) blocks: u64,
    pub(crate) rest: u64,
}

impl Needs {
    pub(crate) fn total(self) -> u64 {
        self.tokens + self.transactions + self.blocks + self.rest
    }
}

/// A window, or a token.
struct Stored {
    digest: Digest,
    /// When it was fetched.
    epoch: usize,
    total: usize,
    /// Whether it holds for as long as a block stands.
    of_block: bool,
}

struct Oracle<'t, 'h> {
    truth: &'t mut Truth<'h>,
    told: Told,
    /// How often the tip has changed before each version.
    epochs: Vec<usize>,
    stored: HashMap<String, Stored>,
    /// By block hash: where each transaction's items stand in its list.
    runs: HashMap<String, HashMap<String, Range<usize>>>,
    needs: Needs,
}

pub(crate) fn needs(trace: &Trace, truth: &mut Truth<'_>, told: Told) -> Needs {
    let mut epochs = vec![0];
    for (_, change) in truth.history.changes() {
        let last = epochs.last().copied().unwrap_or_default();
        epochs.push(last + usize::from(*change != Change::TokensAhead));
    }
    let mut oracle = Oracle {
        truth,
        told,
        epochs,
        stored: HashMap::new(),
        runs: HashMap::new(),
        needs: Needs::default(),
    };
    for request in &trace.requests {
        let version = oracle.truth.history.at(request.at);
        oracle.answer(&trace.asks[request.ask], version);
    }
    oracle.needs
}

impl Oracle<'_, '_> {
    fn answer(&mut self, ask: &Ask, version: usize) {
        match ask {
            Ask::Token { .. } => {
                let asked = self.have(&ask.to_string(), version);
                self.needs.tokens += u64::from(asked);
            }
            Ask::Rest(target) => self.needs.rest += u64::from(self.have(target, version)),
            Ask::Block {
                block,
                limit,
                offset,
            } => {
                let height = self.height(block, version);
                let block = height.map_or(block.clone(), |height| height.to_string());
                let window = |offset| Ask::Block {
                    block: block.clone(),
                    limit: WINDOW,
                    offset,
                };
                self.needs.blocks += self.have_page(window, *offset..*offset + *limit, version);
            }
            Ask::Transaction { id, limit, offset } => {
                if self.is_in_block(id, version) {
                    return;
                }
                let window = |offset| Ask::Transaction {
                    id: id.clone(),
                    limit: WINDOW,
                    offset,
                };
                self.needs.transactions +=
                    self.have_page(window, *offset..*offset + *limit, version);
            }
        }
    }

    /// The height of a block given by either of its names.
    fn height(&self, block: &str, version: usize) -> Option<u32> {
        if block.len() < 64 {
            return block.parse().ok();
        }
        let target = Ask::Block {
            block: block.to_owned(),
            limit: 1,
            offset: 0,
        };
        let page = self.truth.history.page(version, &target.to_string());
        Some(page.results.first()?.location.block_height)
    }

    /// Has the windows that a page is made of, and says how many it had to ask
    /// for.
    fn have_page(
        &mut self,
        window: impl Fn(usize) -> Ask,
        page: Range<usize>,
        version: usize,
    ) -> u64 {
        let mut asked = 0;
        let first = page.start / WINDOW * WINDOW;
        let mut total = self.total(&window, version);
        for offset in (first..page.end).step_by(WINDOW) {
            if total.is_some_and(|total| offset.max(page.start) >= total) {
                break;
            }
            let target = window(offset).to_string();
            asked += u64::from(self.have(&target, version));
            if total.is_none() {
                total = self.total_of(&target, offset);
            }
        }
        asked
    }

    /// The total that any stored window of a list tells.
    fn total(&mut self, window: &impl Fn(usize) -> Ask, version: usize) -> Option<usize> {
        // Only the first windows are looked at: walks begin there.
        (0..3).find_map(|n| {
            let target = window(n * WINDOW).to_string();
            let good = self.is_good(&target, version);
            good.then(|| self.total_of(&target, n * WINDOW)).flatten()
        })
    }

    fn total_of(&self, target: &str, offset: usize) -> Option<usize> {
        let total = self.stored.get(target)?.total;
        // Past the end it is zero, whatever it is.
        (total > 0 || offset == 0).then_some(total)
    }

    /// Whether what is stored for a target is known to be true.
    fn is_good(&mut self, target: &str, version: usize) -> bool {
        let Some(stored) = self.stored.get(target) else {
            return false;
        };
        let unchanged = stored.digest == self.truth.digest(target, version);
        match self.told {
            Told::Answers => unchanged,
            Told::Chain if stored.of_block => unchanged,
            Told::Chain => stored.epoch == self.epochs[version],
        }
    }

    /// Has what a target says, and says whether it had to ask.
    fn have(&mut self, target: &str, version: usize) -> bool {
        if self.is_good(target, version) {
            return false;
        }
        let page = self.truth.history.page(version, target);
        let stored = Stored {
            digest: self.truth.digest(target, version),
            epoch: self.epochs[version],
            total: page.total,
            // What an inscription contains never changes.
            of_block: !page.results.is_empty() || target.ends_with("/content"),
        };
        self.stored.insert(target.to_owned(), stored);
        true
    }

    /// Whether the windows that it has of a block hold all of a transaction.
    fn is_in_block(&mut self, id: &str, version: usize) -> bool {
        let target = Ask::Transaction {
            id: id.to_owned(),
            limit: 1,
            offset: 0,
        };
        let page = self.truth.history.page(version, &target.to_string());
        let Some(item) = page.results.first() else {
            return false;
        };
        let block = item.location.block_height.to_string();
        let window = |offset| {
            let ask = Ask::Block {
                block: block.clone(),
                limit: WINDOW,
                offset,
            };
            ask.to_string()
        };
        let hash = &item.location.block_hash;
        if !self.runs.contains_key(hash) {
            let runs = self.runs_of(&window, version);
            self.runs.insert(hash.clone(), runs);
        }
        let Some(run) = self.runs.get(hash).and_then(|runs| runs.get(id)).cloned() else {
            return false;
        };
        let first = run.start / WINDOW * WINDOW;
        (first..run.end)
            .step_by(WINDOW)
            .all(|offset| self.is_good(&window(offset), version))
    }

    /// Where each transaction of a block stands in its list.
    fn runs_of(
        &self,
        window: &impl Fn(usize) -> String,
        version: usize,
    ) -> HashMap<String, Range<usize>> {
        let mut runs: HashMap<String, Range<usize>> = HashMap::new();
        for offset in (0..).step_by(WINDOW) {
            let page = self.truth.history.page(version, &window(offset));
            if page.results.is_empty() {
                break;
            }
            for (at, item) in (offset..).zip(page.results) {
                let run = runs.entry(item.location.tx_id).or_insert(at..at);
                run.end = at + 1;
            }
        }
        runs
    }
}
