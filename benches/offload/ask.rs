//! What a client asks, and how a page's body reads.

use std::fmt;

use serde::Deserialize;

/// A request of the trace, in the one spelling that all its clients use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Block {
        /// Its height or its hash.
        block: String,
        limit: usize,
        offset: usize,
    },
    Transaction {
        id: String,
        limit: usize,
        offset: usize,
    },
    Token {
        /// Percent-encoded.
        ticker: String,
    },
    /// The rest of the API: a target.
    Rest(String),
}

/// The target.
impl fmt::Display for Ask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block {
                block,
                limit,
                offset,
            } => write!(
                formatter,
                "/runes/v1/blocks/{block}/activity?limit={limit}&offset={offset}"
            ),
            Self::Transaction { id, limit, offset } => write!(
                formatter,
                "/runes/v1/transactions/{id}/activity?limit={limit}&offset={offset}"
            ),
            Self::Rest(target) => formatter.write_str(target),
            Self::Token { ticker } => write!(formatter, "/ordinals/v1/brc-20/tokens/{ticker}"),
        }
    }
}

/// A page of activity, as far as clients of the trace and the oracle read it.
#[derive(Deserialize, Default)]
pub(crate) struct Page {
    pub(crate) total: usize,
    pub(crate) results: Vec<Item>,
}

/// An item of it.
#[derive(Deserialize)]
pub(crate) struct Item {
    pub(crate) location: Location,
}

/// Where it stands.
#[derive(Deserialize)]
pub(crate) struct Location {
    pub(crate) block_hash: String,
    pub(crate) block_height: u32,
    pub(crate) tx_id: String,
}

impl Page {
    /// Reads a body; what is no page reads as an empty one.
    pub(crate) fn read(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }
}
