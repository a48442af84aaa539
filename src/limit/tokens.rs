//! Clients with a token: the limit on requests of each, and how many it has sent.
//!
//! Each has a bucket of its own, outside the table of addresses, so that neither the
//! requests nor the number of other clients change what it may send. The token file
//! bounds how many there are.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use governor::middleware::StateInformationMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use http::HeaderValue;

use super::{RequestAllowance, Settings, TooManyRequests, ceil, policy};
use crate::client_tokens::{NameIndex, TokenFault, TokenName, TokenSettings, TokenTable};
use crate::clock::{Clock, Moment};

/// The most clients with tokens that `/status` and `/metrics` list.
pub const MOST_TOKEN_ROWS: usize = 100;

/// A client with a token.
pub struct TokenClient {
    /// Its name.
    pub name: Box<str>,
    /// Its number, as in `Client::Token`.
    pub number: u32,
    /// The origins whose pages may use its tokens; `None` for any.
    pub origins: Option<Box<[HeaderValue]>>,
    /// The value of `ratelimit-policy`, where its limit is not that of other clients.
    pub policy: Option<HeaderValue>,
    /// `None` where limits are disabled, and its name has none of its own.
    limit: Option<TokenLimit>,
    usage: Arc<TokenUsage>,
}

struct TokenLimit {
    quota: Quota,
    bucket: Arc<RateLimiter<NotKeyed, InMemoryState, Clock, StateInformationMiddleware>>,
}

/// How many requests a client has sent.
#[derive(Debug, Default)]
struct TokenUsage {
    admitted: AtomicU64,
    limited: AtomicU64,
}

/// A number of requests: within their client's limit, and over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCount {
    /// Within the limit.
    pub admitted: u64,
    /// Refused with 429.
    pub limited: u64,
}

/// The clients with tokens, of one configuration.
#[derive(Default)]
pub struct TokenClients {
    clients: Box<[TokenClient]>,
    counts: Arc<TokenCounts>,
}

/// Counts that survive a reload.
#[derive(Debug, Default)]
struct TokenCounts {
    /// Requests of clients whose names are no longer in the token file.
    gone: TokenUsage,
    faults: [AtomicU64; TokenFault::ALL.len()],
}

impl TokenClient {
    /// Counts a request.
    ///
    /// # Errors
    /// Where it exceeds the limit.
    #[inline]
    pub fn admit(&self, now: Moment) -> Result<Option<RequestAllowance>, TooManyRequests> {
        let allowance = match &self.limit {
            Some(limit) => limit.admit(now).map(Some),
            None => Ok(None),
        };
        let count = match allowance {
            Ok(_) => &self.usage.admitted,
            Err(_) => &self.usage.limited,
        };
        count.fetch_add(1, Relaxed);
        allowance
    }

    /// Requests per minute, and at once; `None` without a limit.
    pub fn quota(&self) -> Option<(u32, NonZeroU32)> {
        let quota = self.limit.as_ref()?.quota;
        let each = quota.replenish_interval().as_secs_f64();
        Some(((60.0 / each).round() as u32, quota.burst_size()))
    }

    /// How many requests it has sent.
    pub fn count(&self) -> TokenCount {
        self.usage.count()
    }
}

impl TokenLimit {
    #[inline]
    fn admit(&self, now: Moment) -> Result<RequestAllowance, TooManyRequests> {
        let admitted = self.bucket.check().map_err(|not_until| TooManyRequests {
            retry_after: ceil(not_until.wait_time_from(now)).max(1),
        })?;
        let remaining = admitted.remaining_burst_capacity();
        let used = self.quota.burst_size().get().saturating_sub(remaining);
        Ok(RequestAllowance {
            remaining,
            reset: ceil(self.quota.replenish_interval() * used),
        })
    }
}

impl TokenUsage {
    fn count(&self) -> TokenCount {
        TokenCount {
            admitted: self.admitted.load(Relaxed),
            limited: self.limited.load(Relaxed),
        }
    }
}

impl TokenClients {
    /// The clients of a table that comes after these. A client that was there before
    /// keeps its counts, and what it has used of its limit where that is the same.
    #[must_use]
    pub fn next(&self, table: &TokenTable, settings: &Settings, clock: &Clock) -> Self {
        let mut before: Vec<_> = self.clients.iter().collect();
        before.sort_unstable_by_key(|client| client.number);
        let default = settings
            .enabled
            .then(|| quota(settings, &TokenSettings::default()));
        let client = |(new, number): (&TokenName, u32)| {
            let known = before.binary_search_by_key(&number, |client| client.number);
            let known = known.ok().map(|at| before[at]);
            let TokenName {
                name,
                settings: own,
            } = new;
            // A burst alone says nothing where nothing else is limited.
            let is_limited = settings.enabled || own.requests_per_minute.is_some();
            let quota = is_limited.then(|| quota(settings, own));
            let bucket = |quota| {
                let same = known.and_then(|known| known.limit.as_ref());
                match same.filter(|same| same.quota == quota) {
                    Some(same) => same.bucket.clone(),
                    None => {
                        let bucket = RateLimiter::direct_with_clock(quota, clock.clone());
                        Arc::new(bucket.with_middleware())
                    }
                }
            };
            TokenClient {
                name: name.clone(),
                number,
                origins: own.origins.clone(),
                policy: quota.filter(|_| quota != default).map(policy),
                limit: quota.map(|quota| TokenLimit {
                    quota,
                    bucket: bucket(quota),
                }),
                usage: known.map(|known| known.usage.clone()).unwrap_or_default(),
            }
        };
        let next = Self {
            clients: table.names().map(client).collect(),
            counts: self.counts.clone(),
        };
        let mut stays: Vec<_> = next.clients.iter().map(|client| client.number).collect();
        stays.sort_unstable();
        for gone in before {
            if stays.binary_search(&gone.number).is_err() {
                let count = gone.count();
                let sums = &self.counts.gone;
                sums.admitted.fetch_add(count.admitted, Relaxed);
                sums.limited.fetch_add(count.limited, Relaxed);
            }
        }
        next
    }

    /// The client of a name.
    #[inline]
    pub fn get(&self, name: NameIndex) -> Option<&TokenClient> {
        self.clients.get(name.0 as usize)
    }

    /// The client of a number.
    pub fn by_number(&self, number: u32) -> Option<&TokenClient> {
        self.clients.iter().find(|client| client.number == number)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Those that have sent the most requests, the first first, with their places.
    pub fn busiest(&self, most: usize) -> Vec<(NameIndex, &TokenClient)> {
        let places = (0..).map(NameIndex);
        let mut all: Vec<_> = places.zip(&self.clients).collect();
        all.sort_by_cached_key(|(_, client)| {
            let TokenCount { admitted, limited } = client.count();
            std::cmp::Reverse(admitted + limited)
        });
        all.truncate(most);
        all
    }

    /// The requests of all together, since the start.
    pub fn sum(&self) -> TokenCount {
        let counts = self.clients.iter().map(TokenClient::count);
        counts.fold(self.counts.gone.count(), |sum, one| TokenCount {
            admitted: sum.admitted + one.admitted,
            limited: sum.limited + one.limited,
        })
    }

    /// Counts a request without a valid token.
    pub fn count_fault(&self, fault: TokenFault) {
        self.counts.faults[fault as usize].fetch_add(1, Relaxed);
    }

    /// How many requests had no valid token for a reason.
    pub fn faults(&self, fault: TokenFault) -> u64 {
        self.counts.faults[fault as usize].load(Relaxed)
    }
}

/// The limit of a name with these settings. One with fewer requests per minute of its
/// own may not send more at once, unless it has a burst of its own too.
fn quota(settings: &Settings, own: &TokenSettings) -> Quota {
    let per_minute = own
        .requests_per_minute
        .unwrap_or(settings.requests_per_minute);
    let most = own.requests_per_minute.unwrap_or(NonZeroU32::MAX);
    let burst = own.burst.unwrap_or(settings.burst.min(most));
    Quota::per_minute(per_minute).allow_burst(burst)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client_tokens::{self, TokenFile};

    fn table(before: &TokenTable, text: &str) -> TokenTable {
        before.next(&client_tokens::Settings {
            file: Some("t".into()),
            required: false,
            tokens: TokenFile::parse(text).unwrap().into(),
        })
    }

    fn line(name: &str, n: u32, settings: &str) -> String {
        format!("{name} {n:064x} {settings}\n")
    }

    fn limit(enabled: bool) -> Settings {
        Settings {
            enabled,
            requests_per_minute: NonZeroU32::new(60).unwrap(),
            burst: NonZeroU32::new(2).unwrap(),
            misses_per_minute: 0,
            max_clients: NonZeroU32::MIN,
        }
    }

    fn admit(clients: &TokenClients, at: u32, clock: &Clock) -> Option<u32> {
        let client = clients.get(NameIndex(at)).unwrap();
        let allowance = client.admit(clock.now()).ok()?;
        Some(allowance.unwrap().remaining)
    }

    #[test]
    fn each_token_has_its_own_limit() {
        let clock = Clock::manual();
        let text = line("a", 1, "") + &line("b", 2, "requests_per_minute=6 burst=1");
        let table = table(&TokenTable::default(), &text);
        let clients = TokenClients::default().next(&table, &limit(true), &clock);
        assert_eq!(
            [1, 0].map(Some),
            [(); 2].map(|()| admit(&clients, 0, &clock))
        );
        assert_eq!(admit(&clients, 0, &clock), None);
        assert_eq!(admit(&clients, 1, &clock), Some(0));
        let refused = clients.get(NameIndex(1)).unwrap().admit(clock.now());
        assert_eq!(refused, Err(TooManyRequests { retry_after: 10 }));
        clock.advance(Duration::from_secs(1));
        assert_eq!(admit(&clients, 0, &clock), Some(0));
        assert_eq!(admit(&clients, 1, &clock), None);
        let policies = [0, 1].map(|at| clients.get(NameIndex(at)).unwrap().policy.clone());
        assert_eq!(
            policies,
            [None, Some(HeaderValue::from_static("\"default\";q=1;w=10"))]
        );
        let quotas = [0, 1].map(|at| clients.get(NameIndex(at)).unwrap().quota());
        assert_eq!(
            quotas.map(|quota| quota.map(|(n, burst)| (n, burst.get()))),
            [Some((60, 2)), Some((6, 1))]
        );
    }

    #[test]
    fn a_reload_keeps_usage_and_counts() {
        let clock = Clock::manual();
        let first_table = table(
            &TokenTable::default(),
            &(line("a", 1, "") + &line("b", 2, "")),
        );
        let first = TokenClients::default().next(&first_table, &limit(true), &clock);
        for at in [0, 0, 0, 1] {
            admit(&first, at, &clock);
        }
        first.count_fault(TokenFault::Expired);
        // `a` has another token and another place; `b` is gone.
        let second_table = table(&first_table, &(line("c", 3, "") + &line("a", 4, "")));
        let second = first.next(&second_table, &limit(true), &clock);
        assert_eq!(admit(&second, 1, &clock), None, "its burst is spent");
        assert_eq!(admit(&second, 0, &clock), Some(1));
        let count = |admitted, limited| TokenCount { admitted, limited };
        assert_eq!(second.by_number(0).unwrap().count(), count(2, 2));
        assert_eq!(second.sum(), count(4, 2));
        assert!(second.by_number(1).is_none());
        assert_eq!(second.faults(TokenFault::Expired), 1);
        let busiest = second.busiest(1);
        assert_eq!((&*busiest[0].1.name, busiest[0].0), ("a", NameIndex(1)));
        // Another limit begins anew; without limits nothing is refused.
        let third_table = table(&second_table, &line("a", 4, "burst=3"));
        let third = second.next(&third_table, &limit(true), &clock);
        assert_eq!(admit(&third, 0, &clock), Some(2));
        let last_table = table(&third_table, &line("a", 4, ""));
        let last = third.next(&last_table, &limit(false), &clock);
        let client = last.get(NameIndex(0)).unwrap();
        for _ in 0..9 {
            assert_eq!(client.admit(clock.now()), Ok(None));
        }
        assert_eq!((client.quota(), client.policy.clone()), (None, None));
        assert_eq!(last.sum(), count(14, 2));
    }

    #[test]
    fn limits_of_a_line_apply_whatever_the_others_are() {
        let clock = Clock::manual();
        for (own, enabled, disabled) in [
            ("", Some((60, 2)), None),
            // No more at once than in a minute.
            ("requests_per_minute=1", Some((1, 1)), Some((1, 1))),
            ("requests_per_minute=600", Some((600, 2)), Some((600, 2))),
            ("requests_per_minute=1 burst=9", Some((1, 9)), Some((1, 9))),
            ("burst=90", Some((60, 90)), None),
        ] {
            let table = table(&TokenTable::default(), &line("a", 1, own));
            for (is_enabled, expected) in [(true, enabled), (false, disabled)] {
                let clients = TokenClients::default().next(&table, &limit(is_enabled), &clock);
                let client = clients.get(NameIndex(0)).unwrap();
                let quota = client.quota().map(|(n, burst)| (n, burst.get()));
                assert_eq!(quota, expected, "{own} {is_enabled}");
                let has_policy = expected.is_some_and(|quota| !is_enabled || quota != (60, 2));
                assert_eq!(client.policy.is_some(), has_policy, "{own} {is_enabled}");
            }
        }
    }
}
