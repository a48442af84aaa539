//! The token file: TOML with a table for each name, and the tokens themselves.
//!
//! ```toml
//! frontend = { sha256 = ["3a7b…e1"], origins = ["https://app.example"] }
//!
//! [partner]
//! sha256 = ["90cc…07", "5d12…9a"]
//! requests_per_minute = 600
//! burst = 50
//! expires = 2027-01-31
//! ```
//!
//! All tokens of a name are one client, so that a token can be replaced while both are valid.
//! A problem is reported without what is in the file, since it may be a token that was put
//! there by mistake.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU32;
use std::time::SystemTime;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use toml::Spanned;
use toml::value::Datetime;

use crate::wire::origin::AllowedOrigin;

/// How each token begins. 48 hex digits follow.
pub const PREFIX: &str = "og_";
/// The length of a token.
pub const LENGTH: usize = PREFIX.len() + 48;

/// What a token file has, by name.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct TokenFile {
    /// The names.
    pub names: BTreeMap<TokenName, Entry>,
}

/// The tokens of a name, and what is set for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Their digests.
    pub sha256: Vec<Spanned<Digest>>,
    pub(super) requests_per_minute: Option<NonZeroU32>,
    pub(super) burst: Option<NonZeroU32>,
    #[serde(default)]
    pub(super) origins: Vec<AllowedOrigin>,
    /// When they stop being valid.
    pub expires: Option<Expiry>,
}

/// A name. In TOML it needs no quotes, and it looks like no token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct TokenName(pub Box<str>);

/// The SHA-256 of a token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Digest([u128; 2]);

/// When the tokens of a name stop being valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Datetime")]
pub struct Expiry(pub SystemTime);

impl TokenFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with it, as `FILE:LINE:COLUMN: MESSAGE`.
    pub fn parse(file: impl std::fmt::Display, text: &str) -> Result<Self, String> {
        let problem = |at: usize, message: &str| {
            let before = &text[..text.floor_char_boundary(at)];
            let lines: Vec<_> = before.split('\n').collect();
            let column = lines.last().map_or(0, |line| line.chars().count()) + 1;
            format!("{file}:{}:{column}: {message}", lines.len())
        };
        let read: Self = toml::from_str(text).map_err(|error| {
            // What comes before "expected" says what is in the file.
            let shown = error.message().rfind("expected").unwrap_or_default();
            let at = error.span().map_or(0, |span| span.start);
            problem(at, &error.message()[shown..])
        })?;
        let empty = read.names.iter().find(|(_, entry)| entry.sha256.is_empty());
        if let Some((TokenName(name), _)) = empty {
            return Err(format!(
                "{file}: {name} has no token: expected a digest in sha256"
            ));
        }
        let mut known = HashSet::new();
        for digest in read.names.values().flat_map(|entry| &entry.sha256) {
            if !known.insert(digest.get_ref()) {
                let message = "the same token is in this file twice; expected each token once";
                return Err(problem(digest.span().start, message));
            }
        }
        Ok(read)
    }
}

impl TryFrom<String> for TokenName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let is_name = (1..=64).contains(&text.len()) && text.bytes().all(is_allowed);
        match is_name && !text.starts_with(PREFIX) {
            true => Ok(Self(text.into())),
            false => Err(
                "expected a name: 1 to 64 of A-Z, a-z, 0-9, '_' and '-', beginning with anything but og_",
            ),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let half = |digits: &str| u128::from_str_radix(digits, 16).ok();
        let halves = text.split_at_checked(32).filter(|_| is_hex);
        let digest = halves.and_then(|(high, low)| Some(Self([half(high)?, half(low)?])));
        digest.ok_or(
            "expected the SHA-256 of a token, 64 hex digits (never the token itself: one that was in a file must be replaced)",
        )
    }
}

impl TryFrom<Datetime> for Expiry {
    type Error = &'static str;

    fn try_from(at: Datetime) -> Result<Self, Self::Error> {
        let midnight = if at.time.is_none() { "T00:00:00Z" } else { "" };
        let read = OffsetDateTime::parse(&format!("{at}{midnight}"), &Rfc3339);
        read.map(|at| Self(at.into())).map_err(|_no_date| {
            "expected a date, such as 2027-01-31 (which is 00:00 UTC), or a time with its offset from UTC, such as 2027-01-31T12:00:00Z"
        })
    }
}

/// A new token. `None` where the system has no randomness.
pub fn new_token() -> Option<String> {
    let mut random = [0; 24];
    SystemRandom::new().fill(&mut random).ok()?;
    let digits = random.map(|byte| format!("{byte:02x}"));
    Some(format!("{PREFIX}{}", digits.concat()))
}

/// The line of a token file for a new name.
pub fn line(TokenName(name): &TokenName, token: &str) -> String {
    let Digest([high, low]) = digest(token.as_bytes());
    format!("{name} = {{ sha256 = [\"{high:032x}{low:032x}\"] }}")
}

/// The digest of a token.
pub(super) fn digest(token: &[u8]) -> Digest {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token);
    let (high, low) = digest.as_ref().split_at(16);
    let half = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u128::from(*byte))
    };
    Digest([half(high), half(low)])
}

#[cfg(test)]
mod tests;
