//! Example paths that have content, for tests, load generators and first-time users.
//!
//! Invariant: while the index is not empty, no list is empty, and every path is answered 200 with content. (The lowest
//! block is never empty, and at most one block in ten is.)

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::chain::{Chain, is_wide};
use super::mix::mix2;
use super::tokens;

/// The number of newest blocks that give paths.
const BLOCKS: usize = 40;

/// Paths with queries, to be appended to a base URL.
#[derive(Clone, Debug, Serialize)]
pub struct Examples {
    /// Details of tokens. The first is an ordinary one.
    pub tokens: Vec<String>,
    /// Activity of transactions; the first is deep below the tip.
    pub transactions: Vec<String>,
    /// Activity of blocks by height and by hash; the first is deep below the tip.
    pub blocks: Vec<String>,
}

impl Examples {
    /// The first path of each; empty where there is none.
    #[must_use]
    pub fn first(&self) -> [&str; 3] {
        [&self.tokens, &self.transactions, &self.blocks]
            .map(|paths| paths.first().map_or("", String::as_str))
    }

    pub(super) fn of(chain: &Chain) -> Self {
        let tickers = tokens::tickers().map(|ticker| utf8_percent_encode(ticker, NON_ALPHANUMERIC));
        let tokens = tickers.map(|ticker| format!("/ordinals/v1/brc-20/tokens/{ticker}"));
        let (mut transactions, mut blocks) = (Vec::new(), Vec::new());
        let older = chain.blocks.len().saturating_sub(BLOCKS);
        for block in chain.blocks.iter().skip(older) {
            let placed = chain.transactions(block);
            if placed.is_empty() {
                continue;
            }
            let any = mix2(chain.seed, u64::from(block.height)) as usize % placed.len();
            let wide = placed.iter().find(|(key, _)| is_wide(*key));
            let id = chain.tx_id(wide.unwrap_or(&placed[any]).0);
            transactions.push(format!("/runes/v1/transactions/{id}/activity"));
            let name = match block.height % 4 {
                0 => chain.hash(block),
                _ => block.height.to_string(),
            };
            blocks.push(format!("/runes/v1/blocks/{name}/activity?limit=5"));
        }
        Self {
            tokens: tokens.collect(),
            transactions,
            blocks,
        }
    }
}
