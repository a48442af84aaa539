//! Example paths that have content, for tests, load generators and first-time users.
//!
//! Invariant: while the index is not empty, no list is empty, and every path is answered 200 with content. (The lowest
//! block is never empty, and at most one block in ten is.)

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::chain::Chain;
use super::mix::mix2;
use super::tokens;

/// The number of newest blocks that give paths.
const BLOCKS: usize = 40;

/// All but the unreserved characters (RFC 3986, section 2.3), which are percent-encoded.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Paths with queries, to be appended to a base URL.
#[derive(Clone, Debug, Default, Serialize)]
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
        let mut examples = Self::default();
        if chain.tip().is_none() {
            return examples;
        }
        let tickers = tokens::tickers().map(|ticker| utf8_percent_encode(ticker, RESERVED));
        let paths = tickers.map(|ticker| format!("/ordinals/v1/brc-20/tokens/{ticker}"));
        examples.tokens.extend(paths);
        let count = chain.blocks.len();
        for block in chain.blocks.iter().skip(count.saturating_sub(BLOCKS)) {
            let placements = chain.placements(block);
            if placements.is_empty() {
                continue;
            }
            let any = mix2(chain.seed, u64::from(block.height)) as usize % placements.len();
            let wide = placements.iter().find(|placed| chain.is_wide(placed.key));
            let id = chain.tx_id(wide.unwrap_or(&placements[any]).key);
            let path = format!("/runes/v1/transactions/{id}/activity");
            examples.transactions.push(path);
            let name = match block.height % 4 {
                0 => chain.hash(block),
                _ => block.height.to_string(),
            };
            let path = format!("/runes/v1/blocks/{name}/activity?limit=5");
            examples.blocks.push(path);
        }
        examples
    }
}
