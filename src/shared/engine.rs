//! The engine: a server of Valkey or Redis that all replicas reach, or a cluster.
//!
//! Each use of it has a small interface here. Behind it are a real server ([`server`]),
//! and for simulations the same scripts in Rust ([`model`]). No request of a client
//! depends on an answer: every call has a time-out, and a failed one has a plain reason.

mod breaker;
pub mod entries;
pub mod model;
pub mod server;

use std::pin::Pin;

use super::allowance::{Reply, Report};

/// The script that counts one report.
pub const REPORT: &str = include_str!("engine/scripts/report.lua");

/// What an interface of the engine returns.
pub type EngineFuture<'t, T> = Pin<Box<dyn Future<Output = Result<T, SharedError>> + Send + 't>>;

/// What a script returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineValue {
    /// Nothing, or false.
    Nothing,
    /// A whole number.
    Number(i64),
    /// A text, or any bytes.
    Bytes(Vec<u8>),
    /// Several values.
    List(Vec<Self>),
}

impl EngineValue {
    /// The values, if it is a list.
    pub fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(list) => Some(list),
            Self::Nothing | Self::Number(_) | Self::Bytes(_) => None,
        }
    }

    /// The bytes, if it has some.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Nothing | Self::Number(_) | Self::List(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// The number, if it is one that is not negative, also as a text.
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            Self::Bytes(_) => self.text()?.parse().ok(),
            Self::Nothing | Self::List(_) => None,
        }
    }
}

/// Keeps account of what all processes may use of each budget.
pub trait Allowances: Send + Sync {
    /// Counts a report about the budget with this name, which is the key in the engine.
    fn report<'t>(&'t self, budget: &'t str, report: &'t Report) -> EngineFuture<'t, Reply>;
}

/// Why the engine gave no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedError {
    /// No answer came in time.
    #[error("no answer within shared.timeout")]
    Late,
    /// It was not asked, since it did not answer lately.
    #[error("not asked, since it has not answered lately")]
    Absent,
    /// There is no connection.
    #[error("no connection: {0}")]
    Connection(Box<str>),
    /// It has answered with an error.
    #[error("the engine refuses: {0}")]
    Refused(Box<str>),
    /// The answer is not what the script returns.
    #[error("the answer is not one of ordgate's script")]
    Unreadable,
}

impl SharedError {
    /// All kinds, as metrics name them.
    pub const KINDS: [&'static str; 5] =
        ["timeout", "absent", "connection", "refused", "unreadable"];

    /// The index of its kind in [`KINDS`](Self::KINDS).
    pub const fn kind(&self) -> usize {
        match self {
            Self::Late => 0,
            Self::Absent => 1,
            Self::Connection(_) => 2,
            Self::Refused(_) => 3,
            Self::Unreadable => 4,
        }
    }
}
