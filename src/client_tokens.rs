//! Client tokens: the credentials that ordgate gives to its own clients. Pure.
//!
//! The operator makes a token with `ordgate token new NAME` ([`token`]) and puts its
//! SHA-256 into the token file ([`mod@file`]). A request carries the token in
//! `authorization: Bearer` or `x-api-key` ([`credentials`]), and is looked up here by
//! its digest. So the process knows no token but those that clients present, and the
//! time of a look-up says nothing about a token.
//!
//! Several tokens may have one name, so that a token can be replaced while both are
//! valid. All of a name's tokens are one client, with one number. A number belongs to
//! one name for as long as the process runs, whatever is reloaded.

pub mod credentials;
mod date;
pub mod file;
mod redact;
pub mod token;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use foldhash::quality::RandomState;

use crate::reason::Reason;

pub use file::{TokenFile, TokenName, TokenSettings};
pub use redact::{redact, shown_path, without_query};
pub use token::Digest;

/// The configuration of client tokens.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The token file; without one, there are no client tokens.
    pub file: Option<PathBuf>,
    /// Whether a request without a valid token is refused.
    pub required: bool,
    /// What the file has, once it is read.
    pub tokens: Arc<TokenFile>,
}

/// What is wrong with the token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// There is none, and one is required.
    Missing,
    /// It does not have the form of a token, or its checksum is wrong.
    Malformed,
    /// It is in no line of the token file.
    Unknown,
    /// It was valid until a time that has passed.
    Expired,
    /// The request has several that differ.
    Conflicting,
}

impl TokenFault {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Missing,
        Self::Malformed,
        Self::Unknown,
        Self::Expired,
        Self::Conflicting,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Conflicting => "conflicting",
        }
    }

    /// The word for it.
    pub const fn reason(self) -> Reason {
        match self {
            Self::Missing => Reason::NoToken,
            Self::Malformed => Reason::MalformedToken,
            Self::Unknown => Reason::UnknownToken,
            Self::Expired => Reason::ExpiredToken,
            Self::Conflicting => Reason::ConflictingTokens,
        }
    }
}

/// The position of a token in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenIndex(u32);

/// The position of a name in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameIndex(pub u32);

/// The client tokens of one configuration.
#[derive(Debug, Default)]
pub struct TokenTable {
    /// Whether there is a token file.
    is_enabled: bool,
    /// Whether a request without a valid token is refused.
    is_required: bool,
    /// Differs from that of every other table of the process.
    generation: u64,
    tokens: Arc<TokenFile>,
    by_digest: HashMap<Digest, u32, RandomState>,
    /// The number of each name.
    numbers: Box<[u32]>,
    next_number: u32,
}

impl TokenTable {
    /// The table of a configuration.
    pub fn new(settings: &Settings) -> Self {
        Self::default().next(settings)
    }

    /// The table after a reload. A name that is in both keeps its number; a new one
    /// gets a number that no name has had.
    #[must_use]
    pub fn next(&self, settings: &Settings) -> Self {
        let tokens = settings.tokens.clone();
        let names = self.tokens.names.iter().zip(&self.numbers);
        let known: HashMap<&str, u32> = names.map(|(old, number)| (&*old.name, *number)).collect();
        let mut next_number = self.next_number;
        let number = |new: &TokenName| {
            known.get(&*new.name).copied().unwrap_or_else(|| {
                next_number += 1;
                next_number - 1
            })
        };
        let numbers = tokens.names.iter().map(number).collect();
        let each = (0..).zip(&tokens.tokens);
        Self {
            is_enabled: settings.file.is_some(),
            is_required: settings.file.is_some() && settings.required,
            generation: self.generation + 1,
            by_digest: each.map(|(at, token)| (token.digest, at)).collect(),
            tokens,
            numbers,
            next_number,
        }
    }

    /// Whether requests are searched for tokens.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Whether a request without a valid token is refused.
    #[inline]
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Differs from that of every other table of the process.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The names, and the number of each.
    pub fn names(&self) -> impl Iterator<Item = (&TokenName, u32)> {
        self.tokens.names.iter().zip(self.numbers.iter().copied())
    }

    /// When the tokens of each name expire, in the order of the names.
    pub fn expiries(&self, name: NameIndex) -> impl Iterator<Item = Option<SystemTime>> {
        let tokens = self.tokens.tokens.iter();
        let tokens = tokens.filter(move |token| token.name == name.0);
        tokens.map(|token| token.expires)
    }

    /// Finds a token by what a client has presented.
    ///
    /// # Errors
    /// Where it is malformed or unknown.
    pub fn find(&self, presented: &[u8]) -> Result<TokenIndex, TokenFault> {
        if !token::is_well_formed(presented) {
            return Err(TokenFault::Malformed);
        }
        let found = self.by_digest.get(&token::digest(presented));
        found.copied().map(TokenIndex).ok_or(TokenFault::Unknown)
    }

    /// The name that a token belongs to, and its number, unless it has expired by now.
    ///
    /// # Errors
    /// Where it has expired.
    #[inline]
    pub fn owner(
        &self,
        token: TokenIndex,
        now: impl FnOnce() -> SystemTime,
    ) -> Result<(NameIndex, u32), TokenFault> {
        // A `TokenIndex` comes from a table of the same generation.
        let found = self.tokens.tokens.get(token.0 as usize);
        let token = found.ok_or(TokenFault::Unknown)?;
        if let Some(expires) = token.expires
            && now() >= expires
        {
            return Err(TokenFault::Expired);
        }
        let number = self.numbers.get(token.name as usize);
        let number = number.copied().ok_or(TokenFault::Unknown)?;
        Ok((NameIndex(token.name), number))
    }
}

#[cfg(test)]
mod tests;
