//! The token file: a line for each token.
//!
//! ```text
//! # name SHA-256-of-the-token [requests_per_minute=N] [burst=N] [origins=A,B] [expires=DATE]
//! frontend 3a7b…e1 origins=https://app.example
//! partner  90cc…07 requests_per_minute=600 burst=50 expires=2027-01-31
//! ```
//!
//! The limits of a line apply even where `limit.enabled` is false. A line with
//! `requests_per_minute` alone has that burst, where that of `[limit]` is larger.
//!
//! Several lines with one name are tokens of one client, so they must have the same
//! settings, apart from when each expires. Problems are reported with line and column
//! and without what is there, since it may be a token that was put there by mistake.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::SystemTime;

use http::HeaderValue;

use super::date;
use super::token::{Digest, PREFIX};
use crate::wire::origin;

/// The most tokens of a file.
pub const MAX_TOKENS: usize = 10_000;
/// The most bytes of a file: enough for as many tokens with long origins.
pub const MAX_BYTES: usize = 8 << 20;
/// The most requests per minute, and the largest burst: as in `[limit]`.
const MAX_RATE: u32 = 60_000_000;
const MAX_NAME: usize = 64;

/// What a token file has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TokenFile {
    /// The names, in the order of the file.
    pub names: Vec<TokenName>,
    /// The tokens, in the order of the file.
    pub tokens: Vec<TokenLine>,
}

/// A name, and what is set for all of its tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenName {
    /// The name.
    pub name: Box<str>,
    /// Its settings.
    pub settings: TokenSettings,
}

/// What is set for a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSettings {
    /// Requests per minute, where they are not those of `[limit]`.
    pub requests_per_minute: Option<NonZeroU32>,
    /// Requests at once, where they are not those of `[limit]`.
    pub burst: Option<NonZeroU32>,
    /// The origins whose pages may use the tokens; `None` for any.
    pub origins: Option<Box<[HeaderValue]>>,
}

/// A token.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenLine {
    pub(super) digest: Digest,
    /// The place of its name among the names.
    pub(super) name: u32,
    /// When it stops being valid.
    pub(super) expires: Option<SystemTime>,
}

/// A problem of a token file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenProblem {
    line: usize,
    column: usize,
    message: String,
}

impl TokenProblem {
    /// The problem with the file's name, as `FILE:LINE:COLUMN: MESSAGE`.
    pub fn of_file(&self, file: impl fmt::Display) -> String {
        let Self {
            line,
            column,
            message,
        } = self;
        format!("{file}:{line}:{column}: {message}")
    }
}

/// Whether a text may be a name.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins_well = text.starts_with(|first: char| first.is_ascii_alphanumeric());
    // A token in place of the name is a mistake, and names are shown.
    let is_token = text.as_bytes().starts_with(PREFIX);
    begins_well && !is_token && text.len() <= MAX_NAME && text.bytes().all(is_allowed)
}

/// What names are allowed.
pub const NAMES: &str = "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', beginning with a letter or digit, and not with og_";

impl TokenFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Vec<TokenProblem>> {
        let mut reader = Reader::default();
        for (number, line) in (1..).zip(text.lines()) {
            if reader.problems.len() >= MAX_PROBLEMS {
                break;
            }
            if let Err((column, message)) = reader.line(number, line) {
                reader.problems.push(TokenProblem {
                    line: number,
                    column,
                    message,
                });
            }
        }
        match reader.problems.is_empty() {
            true => Ok(reader.file),
            false => Err(reader.problems),
        }
    }
}

impl TokenFile {
    /// The names of the tokens that have expired.
    pub fn expired(&self, now: SystemTime) -> impl Iterator<Item = &str> {
        let expired = self.tokens.iter();
        let expired = expired.filter(move |token| token.expires.is_some_and(|at| now >= at));
        expired.filter_map(|token| Some(&*self.names.get(token.name as usize)?.name))
    }
}

/// The most problems that are reported at once.
const MAX_PROBLEMS: usize = 20;

/// The column and the text of a problem.
type Fault = (usize, String);

#[derive(Default)]
struct Reader<'t> {
    file: TokenFile,
    problems: Vec<TokenProblem>,
    /// The place of each name, and the line where it is first.
    names: HashMap<&'t str, (u32, usize)>,
    /// The line of each digest.
    digests: HashMap<Digest, usize>,
}

impl<'t> Reader<'t> {
    fn line(&mut self, number: usize, line: &'t str) -> Result<(), Fault> {
        let mut words = words(line).into_iter();
        let Some((at, name)) = words.next() else {
            return Ok(());
        };
        if !is_name(name) {
            return Err((at, format!("a line begins with a name: {NAMES}")));
        }
        let end = at + name.len();
        let Some((at, text)) = words.next() else {
            return Err((
                end,
                "the SHA-256 of the token is missing after the name".to_owned(),
            ));
        };
        let digest = digest_of(text).map_err(|message| (at, message))?;
        let options: Vec<_> = words.collect();
        let (settings, expires) = options_of(&options)?;
        if let Some(first) = self.digests.get(&digest) {
            return Err((
                at,
                format!("the same token is in line {first}; each once is allowed"),
            ));
        }
        if self.digests.len() == MAX_TOKENS {
            return Err((
                1,
                format!("there are more than {MAX_TOKENS} tokens, the most that are allowed"),
            ));
        }
        self.digests.insert(digest, number);
        let name = self.name(name, settings, number)?;
        self.file.tokens.push(TokenLine {
            digest,
            name,
            expires,
        });
        Ok(())
    }

    /// The place of a name, whose settings are the same in each line.
    fn name(&mut self, name: &'t str, settings: TokenSettings, line: usize) -> Result<u32, Fault> {
        let names = &mut self.file.names;
        let Some((place, first)) = self.names.get(name) else {
            let place = names.len() as u32;
            self.names.insert(name, (place, line));
            let name = name.into();
            names.push(TokenName { name, settings });
            return Ok(place);
        };
        let is_same = names
            .get(*place as usize)
            .is_some_and(|known| known.settings == settings);
        match is_same {
            true => Ok(*place),
            false => Err((
                1,
                format!(
                    "this line and line {first} have the same name and different settings; the tokens of one name are one client, so requests_per_minute, burst and origins must be the same (expires may differ)"
                ),
            )),
        }
    }
}

/// The words of a line with the column of each, up to a comment.
fn words(line: &str) -> Vec<(usize, &str)> {
    let is_blank = |c: char| c == ' ' || c == '\t';
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start_matches(is_blank);
        if rest.is_empty() || rest.starts_with('#') {
            return words;
        }
        let (word, after) = rest.split_at(rest.find(is_blank).unwrap_or(rest.len()));
        let before = &line[..line.len() - rest.len()];
        words.push((before.chars().count() + 1, word));
        rest = after;
    }
}

fn digest_of(text: &str) -> Result<Digest, String> {
    if text.as_bytes().starts_with(PREFIX) {
        return Err("this is a token; the file must have its SHA-256 in hex (printf %s TOKEN | sha256sum), and the token itself must be replaced, since it was in a file".to_owned());
    }
    let wrong = || "the SHA-256 of the token must be 64 hex digits".to_owned();
    let mut digest = [0; 32];
    if text.len() != 64 {
        return Err(wrong());
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
        let nibble = |at: usize| char::from(pair[at]).to_digit(16);
        let (high, low) = (nibble(0).ok_or_else(wrong)?, nibble(1).ok_or_else(wrong)?);
        *byte = (high << 4 | low) as u8;
    }
    Ok(digest)
}

/// The settings of a line's options, and when its token expires.
fn options_of(options: &[(usize, &str)]) -> Result<(TokenSettings, Option<SystemTime>), Fault> {
    const ALLOWED: &str =
        "requests_per_minute=N, burst=N, origins=https://A,https://B or expires=DATE";
    let mut settings = TokenSettings::default();
    let mut expires = None;
    for &(at, option) in options {
        let wrong = |message: &str| (at, message.to_owned());
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let is_first = match key {
            "requests_per_minute" => settings
                .requests_per_minute
                .replace(rate(value, key, at)?)
                .is_none(),
            "burst" => settings.burst.replace(rate(value, key, at)?).is_none(),
            "origins" => {
                let origins = value.split(',').map(origin::parse).collect();
                let origins: Result<Box<[_]>, _> = origins;
                let origins = origins.map_err(|reason| {
                    let allowed = "origins must be origins without a path, separated by commas, such as https://app.example,https://b.example:8443";
                    match reason {
                        "" => wrong(allowed),
                        reason => wrong(&format!("{allowed}: {reason}")),
                    }
                })?;
                settings.origins.replace(origins).is_none()
            }
            "expires" => {
                let date = date::parse(value).ok_or_else(|| {
                    wrong("expires must be a date of RFC 3339, such as 2027-01-31 (which is 00:00 UTC) or 2027-01-31T12:00:00Z")
                })?;
                expires.replace(date).is_none()
            }
            _ => return Err((at, format!("allowed here is {ALLOWED}"))),
        };
        if !is_first {
            return Err((at, format!("{key} is twice in this line; once is allowed")));
        }
    }
    Ok((settings, expires))
}

fn rate(text: &str, key: &str, at: usize) -> Result<NonZeroU32, Fault> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text
        .parse()
        .ok()
        .filter(|rate: &NonZeroU32| is_plain && rate.get() <= MAX_RATE);
    number.ok_or_else(|| (at, format!("{key} must be a number from 1 to {MAX_RATE}")))
}

#[cfg(test)]
mod tests;
