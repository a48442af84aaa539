//! Client tokens: the credentials that ordgate gives to its own clients.
//!
//! The operator makes a token with `ordgate token new NAME` and puts its SHA-256 into the
//! token file ([`mod@file`]). So the process knows no token but those that clients present,
//! and the time of a look-up says nothing about a token.
//!
//! What begins with `og_` in `authorization: Bearer` or in `x-api-key` is a client token, valid
//! or not. It is removed from the request before anything else reads the fields, so it cannot
//! reach an origin, a cache key or a log. All else is the origin's and stays as it is.
//!
//! All tokens of a name are one client, whose number is a hash of the name: it stays the same
//! whatever is reloaded.

pub mod file;
mod redact;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use foldhash::quality::{FixedState, RandomState};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::clock::Clock;
use crate::limit::{self, ClientRate};
use crate::reason::Reason;
use crate::wire::origin::{self, AllowedOrigin};
use file::{Digest, Entry, Expiry, TokenName};

pub use file::TokenFile;
pub use redact::{redact, without_query};

/// `x-api-key`, where clients of the API send their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The clients with tokens, of one configuration.
#[derive(Default)]
pub struct ClientTokens {
    /// Whether there is a token file, so that requests are searched for tokens.
    pub is_enabled: bool,
    /// Whether a request without a valid token is refused.
    pub is_required: bool,
    /// The place of each token's client.
    by_digest: HashMap<Digest, u32, RandomState>,
    /// In the order of their names.
    pub clients: Vec<TokenClient>,
}

/// A client with a token.
pub struct TokenClient {
    /// Its number, as in `Client::Token`.
    pub number: u64,
    /// Its name.
    pub name: Box<str>,
    /// How many tokens it has.
    pub tokens: usize,
    /// When they stop being valid.
    pub expires: Option<SystemTime>,
    /// The origins whose pages may use them; `None` for any.
    pub origins: Option<Box<[AllowedOrigin]>>,
    /// Its limit on requests, if that is not the one of all clients.
    pub rate: Option<Arc<ClientRate>>,
    /// Its requests: those that were refused with 429, and the others.
    pub requests: Arc<[AtomicU64; 2]>,
}

impl ClientTokens {
    /// The clients of a configuration that comes after this one: those of its token file, if it has
    /// one. Without a file, no token is required.
    #[must_use]
    pub fn next(
        &self,
        file: Option<&TokenFile>,
        is_required: bool,
        limits: &limit::Settings,
        clock: &Clock,
    ) -> Self {
        let names = file.iter().flat_map(|file| &file.names);
        let client = |(TokenName(name), entry): (&TokenName, &Entry)| {
            let before = self
                .clients
                .binary_search_by_key(&name, |client| &client.name);
            let before = before.ok().map(|at| &self.clients[at]);
            let (per_minute, burst) = (entry.requests_per_minute, entry.burst);
            let rate = per_minute.or(burst).map(|_| {
                let all = (limits.requests_per_minute, limits.burst);
                let burst = burst.or(per_minute).unwrap_or(all.1);
                let before = before.and_then(|before| before.rate.as_ref());
                ClientRate::new(
                    "default",
                    (per_minute.unwrap_or(all.0), burst),
                    limit::ONE,
                    clock,
                    before,
                )
            });
            TokenClient {
                number: FixedState::default().hash_one(name),
                name: name.clone(),
                tokens: entry.sha256.len(),
                expires: entry.expires.map(|Expiry(at)| at),
                origins: origin::restriction(&entry.origins),
                rate,
                requests: before.map_or_else(Arc::default, |before| before.requests.clone()),
            }
        };
        let digests = (0..).zip(names.clone()).flat_map(|(at, (_, entry))| {
            let digests = entry.sha256.iter();
            digests.map(move |digest| (digest.get_ref().clone(), at))
        });
        Self {
            is_enabled: file.is_some(),
            is_required: is_required && file.is_some(),
            by_digest: digests.collect(),
            clients: names.map(client).collect(),
        }
    }

    /// The client at a place.
    #[inline]
    pub fn get(&self, at: u32) -> Option<&TokenClient> {
        self.clients.get(at as usize)
    }

    /// The hundred that have sent the most requests, the first first, with how many of these
    /// were refused with 429, and how many were not.
    pub fn busiest(&self) -> Vec<([u64; 2], &TokenClient)> {
        let count = |client: &TokenClient| [0, 1].map(|n| client.requests[n].load(Relaxed));
        let all = self.clients.iter().map(|client| (count(client), client));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|([limited, admitted], _)| std::cmp::Reverse(limited + admitted));
        all.truncate(100);
        all
    }

    /// Takes the client tokens out of a request's fields, and finds the client of the first,
    /// and its place. `None` where there is none.
    ///
    /// # Errors
    /// Where it is unknown or has expired.
    #[inline]
    pub fn take(
        &self,
        fields: &mut HeaderMap,
        now: impl FnOnce() -> SystemTime,
    ) -> Option<Result<(u32, &TokenClient), Reason>> {
        let mut first = None;
        // One pass over the few fields of a request costs less than two look-ups by name.
        while let Some((name, presented)) = fields.iter().find_map(token) {
            first.get_or_insert_with(|| self.by_digest.get(&file::digest(presented)).copied());
            let name = name.clone();
            let others = fields.get_all(&name).iter();
            let others = others.filter(|value| token((&name, value)).is_none());
            let others: Vec<_> = others.cloned().collect();
            fields.remove(&name);
            for other in others {
                fields.append(&name, other);
            }
        }
        let valid = |at| match self.get(at) {
            Some(client) if client.expires.is_some_and(|at| now() >= at) => {
                Err(Reason::ExpiredToken)
            }
            client => Ok((at, client.ok_or(Reason::UnknownToken)?)),
        };
        Some(first?.ok_or(Reason::UnknownToken).and_then(valid))
    }
}

/// The client token that a field is (RFC 6750 §2.1). The scheme's case does not matter
/// (RFC 9110 §11.1).
#[inline]
fn token<'f>(
    (name, value): (&'f HeaderName, &'f HeaderValue),
) -> Option<(&'f HeaderName, &'f [u8])> {
    let text = if *name == AUTHORIZATION {
        let (scheme, rest) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(rest)?
    } else if *name == X_API_KEY {
        value.as_bytes()
    } else {
        return None;
    };
    let text = text.trim_ascii();
    text.starts_with(file::PREFIX.as_bytes())
        .then_some((name, text))
}

#[cfg(test)]
mod tests;
