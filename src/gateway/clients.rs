//! Which client a request counts against, and what that client may do.

use std::net::IpAddr;

use http::HeaderMap;

use crate::cache::outcome::Outcome;
use crate::clock::Moment;
use crate::identify::{Client, TrustedProxies};
use crate::limit::{Limit, RequestAllowance};
use crate::refusal::Refusal;

/// Identifies clients and holds them to their limits.
pub(crate) struct ClientPolicy {
    /// Which proxies are believed about a client's address.
    pub(crate) trust: TrustedProxies,
    /// The limits; `None` where there are none.
    pub(crate) limit: Option<Limit>,
}

impl ClientPolicy {
    /// The client that a request counts against.
    pub(super) fn identify(&self, peer: IpAddr, fields: &HeaderMap) -> Client {
        self.trust.client(peer, fields)
    }

    /// Counts a request.
    #[inline]
    pub(super) fn admit(
        &self,
        client: Client,
        now: Moment,
    ) -> Result<Option<RequestAllowance>, Refusal> {
        match &self.limit {
            Some(limit) => limit.admit(client, now).map(Some).map_err(Refusal::TooMany),
            None => Ok(None),
        }
    }

    /// Counts a request that goes to the upstream against its client's limit on
    /// misses. One that joins the fetch of another does not count.
    pub(super) fn admit_miss(
        &self,
        client: Client,
        joins: bool,
        now: Moment,
    ) -> Result<(), Refusal> {
        match &self.limit {
            Some(limit) if !joins => limit
                .admit_miss(client, now)
                .map_err(Refusal::TooManyMisses),
            Some(_) | None => Ok(()),
        }
    }

    /// Corrects what [`admit_miss`](Self::admit_miss) has counted, once it is
    /// known whether the request has reached the upstream.
    pub(super) fn correct_miss(&self, client: Client, joined: bool, sent: bool, now: Moment) {
        match (joined, sent) {
            // The upstream has answered already: if this is over the limit, the
            // next request is refused.
            (true, true) => {
                let _counted = self.admit_miss(client, false, now);
            }
            (false, false) => self.refund_miss(client),
            (true, false) | (false, true) => {}
        }
    }

    /// Gives back what was counted for a request that memory, or the fetch of
    /// another, has answered.
    pub(super) fn refund_miss(&self, client: Client) {
        if let Some(limit) = &self.limit {
            limit.refund_miss(client);
        }
    }

    /// Counts a request over the limit on misses: answered with a stale response,
    /// or refused.
    pub(super) fn count_limited(&self, is_stale: bool) {
        if let Some(limit) = &self.limit {
            limit.refused().count(is_stale);
        }
    }
}

/// Whether a request on a plain route was itself sent to the upstream, by its
/// outcome. A failure does not say so: then it was if it `joined` no other.
pub(super) const fn was_sent(outcome: Option<Outcome>, joined: bool) -> bool {
    match outcome {
        Some(Outcome::Forwarded { collapsed, .. }) => !collapsed,
        Some(Outcome::Hit { .. }) => false,
        Some(Outcome::StaleIfError { .. }) | None => !joined,
    }
}
