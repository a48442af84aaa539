//! `[clients]`, `[answers]` and `[limit]`: which proxies are trusted, what answers
//! have beside the body, and what one client may use.

use std::net::IpAddr;
use std::num::NonZeroU32;

use ipnet::IpNet;

use super::containers::{list, table};
use super::key::keys;
use super::kinds::{
    Choice, Flag, ParsedText, STRING, choice, count, integer, optional, size, text,
};
use super::problem::{FileSpan, Path};
use crate::cache::coding::Coding;
use crate::identify::TrustedProxies;
use crate::wire::origin::{self, AllowedOrigin};
use crate::{client_tokens, compress, limit, listener, respond};

const NETWORK: ParsedText<IpNet> = text(
    "an address or a network, such as \"10.0.0.0/8\"",
    "^[0-9a-fA-F.:]+(/[0-9]+)?$",
    |text| {
        let network = text.parse::<IpNet>();
        let address = |_no_network| text.parse::<IpAddr>().map(IpNet::from);
        network.or_else(address).map_err(|_neither| String::new())
    },
);

const ORIGIN: ParsedText<AllowedOrigin> = text(
    origin::ALLOWED,
    "^([*]|[a-z][a-z0-9+.-]*://([*][.])?[^/?#@*A-Z]+)$",
    |text| AllowedOrigin::try_from(text.to_owned()).map_err(|_allowed| String::new()),
);

/// Whether it is `Forwarded`.
const PROXY_FIELD: Choice<bool> = choice(&[("x-forwarded-for", false), ("forwarded", true)]);

keys! {
    /// How clients are identified.
    pub(super) struct ClientsKeys {
        /// The proxies in front of ordgate, as addresses or networks. Without this,
        /// all clients behind a proxy count as one.
        trusted_proxies: Vec<IpNet> = list(NETWORK) => Vec::new(), shown();
        /// The field in which these proxies report the client's address. ordgate ignores the
        /// other one, which a client may have sent, and ignores both from anyone else.
        proxy_field: bool = PROXY_FIELD => false, shown();
        /// A TOML file of client tokens, to which you add the lines that
        /// `ordgate token new NAME` prints.
        ///
        /// A client sends its token as `authorization: Bearer TOKEN` or in x-api-key. It
        /// then has limits, a share of the upstream and a row in /status of its own,
        /// whatever its address. The file must not be readable by others or writable by
        /// its group (chmod 600). A reload reads it again, and a removed token is invalid
        /// from then on.
        token_file: Option<String> = optional(STRING) => None,
            example("\"/etc/ordgate/client-tokens.toml\""), shown();
        /// Whether requests without a valid token get 401.
        ///
        /// /openapi.json and /docs need none, nor do CORS preflights, except on routes with
        /// methods = ["*"].
        require_token: bool = Flag => false, shown();
    }
}

keys! {
    /// What answers have beside the body.
    pub(super) struct AnswersKeys {
        /// The origins whose web pages may read answers (CORS). `https://*.app.example` is
        /// for all names below app.example; an empty list and `*` allow any.
        cors_origins: Vec<AllowedOrigin> = list(ORIGIN) => Vec::new(), shown();
        /// Whether cache-status has the cache key.
        cache_status_key: bool = Flag => false;
        /// Whether server-timing says where an answer came from, and how long it waited
        /// for other replicas, in the queue, for budget, and for the upstream.
        server_timing: bool = Flag => false;
        compression: CompressionKeys = table() => CompressionKeys::defaults();
    }
}

const CODINGS: Choice<Coding> = choice(&Coding::NAMES);

keys! {
    /// Compression of stored answers for clients that accept it.
    ///
    /// An answer is compressed once for each coding, in the background, when it is
    /// requested in it for the second time. What was made counts against
    /// `cache.max_bytes`. Routes with headers = "all", ranges and answers with
    /// no-transform are not compressed.
    pub(super) struct CompressionKeys {
        /// Whether answers are compressed.
        enabled: bool = Flag => true, shown();
        /// Smaller answers are not compressed.
        min_bytes: u64 = size(0..=1 << 30) => 1 << 10;
        /// The codings that are used. Of several that a client likes equally well, it
        /// gets the first.
        codings: Vec<Coding> = list(CODINGS) => Coding::ALL.to_vec();
    }
}

keys! {
    /// What one client may use. A client is an IPv4 address, an IPv6 /64, or a name of the
    /// token file, which may have other numbers of requests.
    pub(super) struct LimitKeys {
        /// Whether the limits on clients apply.
        ///
        /// Limits that the token file sets apply in any case.
        enabled: bool = Flag => true, shown();
        /// The requests per minute that each client may send. Further ones get 429
        /// with retry-after.
        ///
        /// Every request counts, also refused ones and CORS preflights.
        requests_per_minute: NonZeroU32 = integer(1..=60_000_000) => count(3000), shown();
        /// The most requests that a client may send at once, after a pause.
        burst: NonZeroU32 = integer(1..=60_000_000) => count(3000), shown();
        /// Of these, the requests per minute that may go to the upstream because
        /// nothing fresh is stored; 0 for no such limit.
        ///
        /// After a pause, a client may send as many at once. Beyond the limit, it
        /// gets a stale answer within the bounds of its route, or 429. A request that
        /// waits for another client's fetch does not count. This limit is for single
        /// clients that send far too much: the upstream's budget is shared between
        /// clients in any case.
        misses_per_minute: u32 = integer(0..=60_000_000) => 1200;
        /// The most connections of one client at once. Further ones get 429.
        ///
        /// Trusted proxies may have any number.
        connections: u32 = integer(1..=10_000_000) => 512;
        /// The TLS handshakes per second of one client. Further connections are closed.
        ///
        /// Trusted proxies may do any number.
        tls_handshakes_per_second: u32 = integer(1..=1_000_000) => 10;
        /// The most that one client may hold of `server.max_unsent_bytes`.
        ///
        /// Beyond this, ordgate closes its connections, the longest waiting first,
        /// except for the last one. Trusted proxies may hold any amount.
        unsent_bytes: u64 = size(1 << 16..=1 << 44) => 32 << 20;
    }
}

impl ClientsKeys {
    pub(super) fn settings(self) -> TrustedProxies {
        TrustedProxies {
            networks: self.trusted_proxies.value,
            write_forwarded: *self.proxy_field,
        }
    }
}

impl CompressionKeys {
    pub(super) fn settings(&self) -> compress::Settings {
        compress::Settings {
            enabled: *self.enabled,
            min_bytes: *self.min_bytes,
            codings: self.codings.value.clone(),
        }
    }
}

impl ClientsKeys {
    /// The settings of client tokens. The file is not read here.
    pub(super) fn tokens(&self, path: &Path<'_>) -> client_tokens::Settings {
        let settings = client_tokens::Settings {
            file: self.token_file.value.as_ref().map(Into::into),
            required: *self.require_token,
            ..client_tokens::Settings::default()
        };
        if settings.required && settings.file.is_none() {
            let at = self.require_token.at_or(&FileSpan::default()).clone();
            path.key("require_token")
                .problem(&at, "is true; it takes a token_file with the tokens");
        }
        settings
    }
}

impl AnswersKeys {
    pub(super) fn settings(self) -> respond::Settings {
        respond::Settings {
            cors_origins: self.cors_origins.value,
            cache_status_key: *self.cache_status_key,
            server_timing: *self.server_timing,
        }
    }
}

impl LimitKeys {
    pub(super) fn settings(&self) -> limit::Settings {
        limit::Settings {
            enabled: *self.enabled,
            requests_per_minute: *self.requests_per_minute,
            burst: *self.burst,
            misses_per_minute: *self.misses_per_minute,
        }
    }

    pub(super) fn per_client(&self) -> listener::PerClient {
        listener::PerClient {
            connections: *self.connections,
            tls_handshakes_per_second: *self.tls_handshakes_per_second,
            unsent_bytes: *self.unsent_bytes,
        }
    }
}
