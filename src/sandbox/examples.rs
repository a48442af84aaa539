//! Example paths that have content, for tests, load generators and first-time users.
//!
//! Invariant: while the index is not empty, no list is empty, and every path is answered 200 with content. (The lowest
//! block is never empty, and at most one block in ten is.)

use super::chain::Chain;
use super::mix::mix2;
use super::tokens;

/// The number of newest blocks that give paths.
const BLOCKS: usize = 40;

/// Paths with queries, to be appended to a base URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examples {
    /// Details of tokens. The first is an ordinary one.
    pub tokens: Vec<String>,
    /// Activity of transactions; the first is deep below the tip.
    pub transactions: Vec<String>,
    /// Activity of blocks by height and by hash; the first is deep below the tip.
    pub blocks: Vec<String>,
}

impl Examples {
    /// The path of a token; empty if there is none.
    #[must_use]
    pub fn token(&self) -> &str {
        self.tokens.first().map_or("", String::as_str)
    }

    /// The path of a transaction; empty if there is none.
    #[must_use]
    pub fn transaction(&self) -> &str {
        self.transactions.first().map_or("", String::as_str)
    }

    /// The path of a block; empty if there is none.
    #[must_use]
    pub fn block(&self) -> &str {
        self.blocks.first().map_or("", String::as_str)
    }

    pub(super) fn of(chain: &Chain) -> Self {
        let mut examples = Self::default();
        if chain.tip().is_none() {
            return examples;
        }
        examples.tokens.extend(
            tokens::tickers()
                .map(|ticker| format!("/ordinals/v1/brc-20/tokens/{}", encode(ticker))),
        );
        let count = chain.blocks().count();
        for block in chain.blocks().skip(count.saturating_sub(BLOCKS)) {
            let placements = chain.placements(block);
            if placements.is_empty() {
                continue;
            }
            let any =
                placements[mix2(chain.seed(), u64::from(block.height)) as usize % placements.len()];
            let pick = placements
                .iter()
                .find(|placed| chain.is_wide(placed.key))
                .unwrap_or(&any);
            examples.transactions.push(format!(
                "/runes/v1/transactions/{}/activity",
                chain.tx_id(pick.key)
            ));
            if block.height % 4 == 0 {
                let offset = if placements.len() > 30 {
                    "&offset=25"
                } else {
                    ""
                };
                examples.blocks.push(format!(
                    "/runes/v1/blocks/{}/activity?limit=5{offset}",
                    chain.hash(block)
                ));
            } else {
                examples.blocks.push(format!(
                    "/runes/v1/blocks/{}/activity?limit=5",
                    block.height
                ));
            }
        }
        examples
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "tokens": self.tokens,
            "transactions": self.transactions,
            "blocks": self.blocks,
        })
    }
}

/// Percent-encodes all but the unreserved characters (RFC 3986, section 2.3).
fn encode(ticker: &str) -> String {
    let mut out = String::new();
    for byte in ticker.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use crate::sandbox::{Sandbox, Settings};

    #[test]
    fn every_example_has_content() {
        for blocks in [1, 2, 5, 60, 200] {
            let sandbox = Sandbox::new(Settings {
                blocks,
                ..Settings::default()
            });
            sandbox.reorg(2);
            let examples = sandbox.examples();
            for path in [&examples.tokens, &examples.transactions, &examples.blocks]
                .into_iter()
                .flatten()
            {
                let answer = sandbox.answer(&Method::GET, path, &HeaderMap::new());
                assert_eq!(answer.status, 200, "{path}");
                assert!(!answer.body.ends_with(b"\"results\":[]}"), "{path}");
            }
            for path in [examples.token(), examples.transaction(), examples.block()] {
                assert!(!path.is_empty());
            }
        }
    }
}
