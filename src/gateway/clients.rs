//! Which client a request counts against, and what that client may do.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use http::HeaderMap;
use http::header::ORIGIN;

use crate::cache::outcome::Outcome;
use crate::client_tokens::{ClientTokens, TokenClient, TokenFault, TokenMemo};
use crate::clock::{Clock, Moment};
use crate::identify::{Client, ClientLabel, TrustedProxies};
use crate::limit::{Limit, RequestAllowance};
use crate::refusal::Refusal;
use crate::wire::origin;

/// Identifies clients and holds them to their limits.
pub(crate) struct ClientPolicy {
    /// Which proxies are believed about a client's address.
    pub(crate) trust: TrustedProxies,
    /// The limits; `None` where there are none.
    pub(crate) limit: Option<Limit>,
    /// The clients with tokens.
    pub(crate) tokens: ClientTokens,
}

/// The client that a request counts against, and by what it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdentifiedClient {
    pub(super) client: Client,
    pub(super) credentials: Credentials,
}

/// The client token of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// There is none; the client is an address.
    Absent,
    /// A valid one, of the client at this place.
    Valid(u32),
    /// One that is not valid. The request counts against its address.
    Invalid(TokenFault),
    /// A valid one that is for pages of other origins. The request counts against its
    /// address: otherwise any page could use up what its owner may send.
    OtherOrigin,
}

impl ClientPolicy {
    /// The client that a request counts against. A client token is removed from the
    /// fields.
    #[inline]
    pub(super) fn identify(
        &self,
        peer: IpAddr,
        memo: &TokenMemo,
        fields: &mut HeaderMap,
        clock: &Clock,
    ) -> IdentifiedClient {
        let mut credentials = Credentials::Absent;
        // By the system's clock itself: after the machine was suspended, the time of responses
        // stays behind for a while.
        if self.tokens.is_enabled
            && let Some(found) = self.tokens.take(memo, fields, || clock.system_time())
        {
            credentials = match found {
                Ok((at, client)) if is_for_origin(client, fields) => {
                    return IdentifiedClient {
                        client: Client::Token(client.number),
                        credentials: Credentials::Valid(at),
                    };
                }
                Ok(_) => Credentials::OtherOrigin,
                Err(fault) => Credentials::Invalid(fault),
            };
        }
        IdentifiedClient {
            client: self.trust.client(peer, fields),
            credentials,
        }
    }

    /// Counts a request. One with an invalid token counts against its address, so that
    /// guessing is limited.
    #[inline]
    pub(super) fn admit(
        &self,
        from: &IdentifiedClient,
        now: Moment,
    ) -> Result<Option<RequestAllowance>, Refusal> {
        let token = self.token_client(from);
        let own = token.and_then(|token| token.rate.as_deref());
        let all = self.limit.as_ref().map(|limit| &*limit.requests);
        let admitted = own.or(all).map(|rate| rate.admit(from.client, now));
        if let Some(token) = token {
            let is_admitted = !matches!(admitted, Some(Err(_)));
            token.requests[usize::from(is_admitted)].fetch_add(1, Relaxed);
        }
        admitted.transpose().map_err(Refusal::TooMany)
    }

    /// Refuses an invalid token, and one that is for pages of other origins.
    #[inline]
    pub(super) fn check_token(&self, from: &IdentifiedClient) -> Result<(), Refusal> {
        match from.credentials {
            Credentials::Absent | Credentials::Valid(_) => Ok(()),
            Credentials::Invalid(fault) => Err(Refusal::Token(fault)),
            Credentials::OtherOrigin => Err(Refusal::TokenOrigin),
        }
    }

    /// Refuses a request without a token where one is required.
    #[inline]
    pub(super) fn require_token(&self, from: &IdentifiedClient) -> Result<(), Refusal> {
        match self.tokens.is_required && from.credentials == Credentials::Absent {
            true => Err(Refusal::Token(TokenFault::Missing)),
            false => Ok(()),
        }
    }

    /// The client that a valid token belongs to.
    #[inline]
    pub(super) fn token_client(&self, from: &IdentifiedClient) -> Option<&TokenClient> {
        match from.credentials {
            Credentials::Valid(at) => self.tokens.get(at),
            Credentials::Absent | Credentials::Invalid(_) | Credentials::OtherOrigin => None,
        }
    }

    /// A client as it is shown, with its name if the token file has it.
    pub(crate) fn label(&self, client: Client) -> ClientLabel<'_> {
        let known = match client {
            Client::Token(number) => {
                let mut all = self.tokens.clients.iter();
                all.find(|client| client.number == number)
            }
            Client::V4(_) | Client::V6(_) => None,
        };
        ClientLabel {
            client,
            name: known.map(|known| &*known.name),
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
            limit.refused[usize::from(is_stale)].fetch_add(1, Relaxed);
        }
    }
}

/// Whether a client's tokens are for the page that sends a request. A request without `origin`
/// is not a page's, or is a page's to its own origin.
#[inline]
fn is_for_origin(client: &TokenClient, fields: &HeaderMap) -> bool {
    let mut origins = fields.get_all(ORIGIN).iter();
    let allowed = client.origins.as_deref();
    allowed.is_none_or(|allowed| origins.all(|origin| origin::is_among(allowed, origin)))
}

/// Whether a request on a plain route was itself sent to the upstream, by its
/// outcome. A failure does not say so: then it was if it `joined` no other.
pub(super) const fn was_sent(outcome: Option<Outcome>, joined: bool) -> bool {
    match outcome {
        Some(Outcome::Forwarded { collapsed, .. }) => !collapsed,
        Some(Outcome::Hit { .. } | Outcome::FromDisk { .. } | Outcome::FromShared { .. }) => false,
        Some(Outcome::StaleIfError { .. }) | None => !joined,
    }
}
