//! Which client a request counts against, and what that client may do.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::ORIGIN;

use crate::cache::outcome::Outcome;
use crate::client_tokens::credentials::{self, TokenMemo};
use crate::client_tokens::{NameIndex, TokenFault, TokenTable};
use crate::clock::{Clock, Moment};
use crate::identify::{Client, ClientLabel, TrustedProxies};
use crate::limit::tokens::{TokenClient, TokenClients};
use crate::limit::{Limit, RequestAllowance};
use crate::refusal::Refusal;

/// Identifies clients and holds them to their limits.
pub(crate) struct ClientPolicy {
    /// Which proxies are believed about a client's address.
    pub(crate) trust: TrustedProxies,
    /// The limits; `None` where there are none.
    pub(crate) limit: Option<Limit>,
    /// The client tokens.
    pub(crate) tokens: TokenTable,
    /// The clients that have them.
    pub(crate) token_clients: TokenClients,
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
    /// A valid one, of this name.
    Valid(NameIndex),
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
        if self.tokens.is_enabled()
            && let Some(found) = credentials::take(&self.tokens, memo, fields)
        {
            // By the system's clock itself: after the machine was suspended, the time of
            // responses stays behind for a while.
            let owner = found.and_then(|token| self.tokens.owner(token, || clock.system_time()));
            credentials = match owner {
                Ok((name, number)) if self.is_for_origin(name, fields) => {
                    return IdentifiedClient {
                        client: Client::Token(number),
                        credentials: Credentials::Valid(name),
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

    /// Whether a token is for the page that sends a request. A request without `origin`
    /// is not a page's, or is a page's to its own origin.
    #[inline]
    fn is_for_origin(&self, name: NameIndex, fields: &HeaderMap) -> bool {
        let client = self.token_clients.get(name);
        let Some(allowed) = client.and_then(|client| client.origins.as_deref()) else {
            return true;
        };
        let mut origins = fields.get_all(ORIGIN).iter();
        origins.all(|origin| allowed.contains(origin))
    }

    /// Counts a request. One with an invalid token counts against its address, so that
    /// guessing is limited.
    #[inline]
    pub(super) fn admit(
        &self,
        from: &IdentifiedClient,
        now: Moment,
    ) -> Result<Option<RequestAllowance>, Refusal> {
        if let Some(client) = self.token_client(from) {
            return client.admit(now).map_err(Refusal::TooMany);
        }
        match &self.limit {
            Some(limit) => limit
                .admit(from.client, now)
                .map(Some)
                .map_err(Refusal::TooMany),
            None => Ok(None),
        }
    }

    /// Refuses an invalid token, and one that is for pages of other origins.
    #[inline]
    pub(super) fn check_token(&self, from: &IdentifiedClient) -> Result<(), Refusal> {
        match from.credentials {
            Credentials::Absent | Credentials::Valid(_) => Ok(()),
            Credentials::Invalid(fault) => Err(self.refuse_token(fault)),
            Credentials::OtherOrigin => Err(Refusal::TokenOrigin),
        }
    }

    /// Refuses a request without a token where one is required.
    #[inline]
    pub(super) fn require_token(&self, from: &IdentifiedClient) -> Result<(), Refusal> {
        match self.tokens.is_required() && from.credentials == Credentials::Absent {
            true => Err(self.refuse_token(TokenFault::Missing)),
            false => Ok(()),
        }
    }

    #[cold]
    fn refuse_token(&self, fault: TokenFault) -> Refusal {
        self.token_clients.count_fault(fault);
        Refusal::Token(fault)
    }

    /// The client that a valid token belongs to.
    #[inline]
    pub(super) fn token_client(&self, from: &IdentifiedClient) -> Option<&TokenClient> {
        match from.credentials {
            Credentials::Valid(name) => self.token_clients.get(name),
            Credentials::Absent | Credentials::Invalid(_) | Credentials::OtherOrigin => None,
        }
    }

    /// A client as it is shown, also one of an earlier configuration.
    pub(crate) fn label(&self, client: Client) -> ClientLabel<'_> {
        let name = match client {
            Client::Token(number) => self.token_clients.by_number(number),
            Client::V4(_) | Client::V6(_) => None,
        };
        ClientLabel {
            client,
            name: name.map(|client| &*client.name),
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
        Some(Outcome::Hit { .. } | Outcome::FromDisk { .. } | Outcome::FromShared { .. }) => false,
        Some(Outcome::StaleIfError { .. }) | None => !joined,
    }
}
