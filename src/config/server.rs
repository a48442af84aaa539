//! The tables of listeners, clients and answers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::File;
use crate::cache::coding::Coding;
use crate::listener::{self, ListenAddress, ListenerSettings};
use crate::units::{Size, Texts, Time};
use crate::upstream;
use crate::wire::origin::AllowedOrigin;

/// Sockets, threads and client connections.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerTable {
    /// The address and port for clients, or a list of several. Port 0 takes a free port,
    /// which the ready line names.
    ///
    /// "unix:/path" is a unix socket; its connections count as coming from 127.0.0.1.
    /// Listeners with settings of their own are [[listener]] tables; if there are some and
    /// this is not set, only they are opened. A socket from systemd takes precedence
    /// (LISTEN_FDS; see deploy/systemd).
    #[serde(with = "Texts", skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<ListenAddress>,
    /// The number of threads that serve requests; 0 for one per core. A change needs a
    /// restart.
    pub workers: u16,
    /// How long requests under way may take to finish after SIGTERM.
    #[serde(with = "Time::<0>")]
    pub drain_timeout: Duration,
    /// How long listeners stay open after SIGTERM, while /readyz is already 503: the time
    /// that a load balancer needs to notice.
    #[serde(with = "Time::<0>")]
    pub drain_delay: Duration,
    /// The most client connections at once.
    ///
    /// Beyond this, the client with the most loses the one that has been idle or stalled
    /// longest. Where none is, the new one is closed.
    pub max_connections: NonZeroU64,
    /// The most memory for answers that clients have not read yet.
    ///
    /// A stored response counts once, however many clients it is being sent to. Beyond
    /// this, the client that holds the most loses the connection that has been stalled
    /// longest.
    #[serde(with = "Size::<1_048_576>")]
    pub max_unsent_bytes: u64,
    /// The time from the first byte of a request's head to its last. On a slower one, the
    /// connection is closed.
    #[serde(with = "Time::<1>")]
    pub header_timeout: Duration,
    /// How long a connection may be without a request.
    #[serde(with = "Time::<1>")]
    pub idle_timeout: Duration,
    /// How long a client may read nothing of its answer before it is disconnected.
    #[serde(with = "Time::<1>")]
    pub write_timeout: Duration,
}

/// Where clients connect unless the file says something else.
const PUBLIC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

impl Default for ServerTable {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            listen: Vec::new(),
            workers: 0,
            drain_timeout: seconds(30),
            drain_delay: seconds(0),
            max_connections: const { NonZeroU64::new(16_384).expect("it is not 0") },
            max_unsent_bytes: 64 << 20,
            header_timeout: seconds(10),
            idle_timeout: seconds(75),
            write_timeout: seconds(30),
        }
    }
}

/// The most bytes of a request's head.
const MAX_HEAD_BYTES: usize = 16 << 10;

impl ServerTable {
    /// The settings of connections, with what each client may hold.
    pub(super) fn connections(&self, limit: &LimitTable) -> listener::Settings {
        listener::Settings {
            max_connections: self.max_connections.get(),
            max_head_bytes: MAX_HEAD_BYTES,
            max_unsent_bytes: self.max_unsent_bytes,
            per_client: limit.enabled.then(|| listener::PerClient {
                connections: limit.connections.get(),
                tls_handshakes_per_second: limit.tls_handshakes_per_second,
                unsent_bytes: limit.unsent_bytes,
            }),
            header_timeout: self.header_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
        }
    }
}

/// The admin listener: /healthz, /readyz, /metrics, /status, /explain, /purge and /reload.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminTable {
    /// The address and port of the admin listener. If it is not a loopback address, the
    /// admin token is required.
    ///
    /// The admin token comes from the environment variable ORDGATE_ADMIN_TOKEN or from
    /// `token_file`. When there is one, every request except those for /healthz and /readyz
    /// must have `authorization: Bearer TOKEN` with it, on any address. A change of the
    /// address needs a restart.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// A file with the token, unless ORDGATE_ADMIN_TOKEN is set.
    ///
    /// The file must not be readable by others or writable by its group (chmod 600).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The names that requests may have in `Host`, beside localhost and any IP address.
    ///
    /// Other names get 421, because a web page can make its own name lead to this address.
    /// /healthz and /readyz answer to any name.
    pub hosts: Vec<String>,
}

impl Default for AdminTable {
    fn default() -> Self {
        Self {
            listen: ADMIN,
            token_file: None,
            hosts: Vec::new(),
        }
    }
}

/// How clients are identified.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientsTable {
    /// The proxies in front of ordgate, as addresses or networks. Without this, all clients
    /// behind a proxy count as one.
    #[serde(with = "Texts")]
    pub(super) trusted_proxies: Vec<Network>,
    /// The field in which these proxies report the client's address. ordgate ignores the
    /// other one, which a client may have sent, and ignores both from anyone else.
    pub(super) proxy_field: ProxyField,
    /// A TOML file of client tokens, to which you add the lines that
    /// `ordgate token new NAME` prints.
    ///
    /// A client sends its token as `authorization: Bearer TOKEN` or in x-api-key. It then
    /// has limits, a share of the upstream and a row in /status of its own, whatever its
    /// address. The file must not be readable by others or writable by its group (chmod
    /// 600). A reload reads it again, and a removed token is invalid from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Whether requests without a valid token get 401.
    ///
    /// /openapi.json and /docs need none, nor do CORS preflights, except on routes with
    /// methods = ["*"].
    pub require_token: bool,
}

/// A network, or one address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network(pub(super) IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let network = address.or_else(|_| text.parse::<IpNet>().map(|network| network.trunc()));
        network.map(Self).map_err(|_neither| {
            format!("{text:?} came; allowed is an address or a network, such as \"10.0.0.0/8\" or \"::1\"")
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(to)
    }
}

/// The field in which trusted proxies report clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub(super) enum ProxyField {
    #[default]
    XForwardedFor,
    Forwarded,
}

/// What answers have beside the body.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AnswerTable {
    /// The origins whose web pages may read answers (CORS). `https://*.app.example` is for
    /// all names below app.example; an empty list and `*` allow any.
    #[schemars(with = "Vec<String>")]
    pub(super) cors_origins: Vec<AllowedOrigin>,
    /// Whether server-timing says where an answer came from, and how long it waited for
    /// other replicas, in the queue, for budget, and for the upstream.
    pub(super) server_timing: bool,
    /// The codings in which stored answers are compressed for clients that accept them; an
    /// empty list for none. Of several that a client likes equally well, it gets the first.
    ///
    /// An answer of at least 1 KiB is compressed once for each coding, in the background,
    /// after a stored one was wanted in it. What was made counts against
    /// `cache.max_bytes`. Routes with headers = "all", ranges and answers with no-transform
    /// are not compressed.
    pub(super) compression: Vec<Coding>,
}

impl Default for AnswerTable {
    fn default() -> Self {
        Self {
            cors_origins: Vec::new(),
            server_timing: false,
            compression: Coding::ALL.to_vec(),
        }
    }
}

/// What one client may use. A client is an IPv4 address, an IPv6 /64, or a name of the token
/// file, which may have other numbers of requests.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitTable {
    /// Whether the limits on clients apply. Limits that the token file sets apply in any
    /// case.
    pub(super) enabled: bool,
    /// The requests per minute that each client may send. Further ones get 429 with
    /// retry-after. Every request counts, also refused ones and CORS preflights.
    pub(super) requests_per_minute: NonZeroU32,
    /// The most requests that a client may send at once, after a pause.
    pub(super) burst: NonZeroU32,
    /// Of these, the requests per minute that may go to the upstream because nothing fresh
    /// is stored; 0 for no such limit.
    ///
    /// After a pause, a client may send as many at once. Beyond the limit, it gets a stale
    /// answer within the bounds of its route, or 429. A request that waits for another
    /// client's fetch does not count. This limit is for single clients that send far too
    /// much: the upstream's budget is shared between clients in any case.
    pub(super) misses_per_minute: u32,
    /// The most connections of one client at once. For a further one, ordgate closes the one
    /// that has been idle or stalled longest; where none is, the new one. Trusted proxies may
    /// have any number.
    pub(super) connections: NonZeroU32,
    /// The TLS handshakes per second of one client. Further connections are closed. Trusted
    /// proxies may do any number.
    pub(super) tls_handshakes_per_second: NonZeroU32,
    /// The most that one client may hold of `server.max_unsent_bytes`.
    ///
    /// Beyond this, ordgate closes its connections, the longest waiting first, except for
    /// the last one. Trusted proxies may hold any amount.
    #[serde(with = "Size::<65_536>")]
    pub(super) unsent_bytes: u64,
}

impl Default for LimitTable {
    fn default() -> Self {
        let number = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        Self {
            enabled: true,
            requests_per_minute: number(3000),
            burst: number(3000),
            misses_per_minute: 1200,
            connections: number(512),
            tls_handshakes_per_second: number(10),
            unsent_bytes: 32 << 20,
        }
    }
}

/// The listeners of a file: those of `server.listen`, then those with settings of their own.
/// Says which names or addresses are there twice, the admin listener's included.
pub(super) fn listeners(file: &File, problems: &mut Vec<String>) -> Vec<ListenerSettings> {
    let mut plain = file.server.listen.clone();
    if plain.is_empty() && file.listener.is_empty() {
        plain.push(PUBLIC.into());
    }
    let mut listeners: Vec<_> = plain.into_iter().map(ListenerSettings::at).collect();
    listeners.extend(file.listener.iter().cloned());
    let admin = ListenerSettings::at(ListenAddress::Tcp(file.admin.listen));
    for (at, one) in listeners.iter().enumerate() {
        if let Some(name) = &one.name {
            let is_known = |other: &ListenerSettings| other.name.as_ref() == Some(name);
            if !upstream::is_name(name) || matches!(&**name, "public" | "admin") {
                problems.push(format!(
                    "listener.name is {name:?}; allowed are 1 to 32 of a-z, 0-9 and -, but not \"public\" or \"admin\""
                ));
            } else if listeners[..at].iter().any(is_known) {
                problems.push(format!(
                    "listener.name is {name:?} twice: each needs its own"
                ));
            }
        }
        let address = &one.address;
        if address.conflicts_with(&admin.address) {
            problems.push(format!(
                "{} is {address}, and admin.listen is {}: each needs a port of its own",
                one.key(),
                admin.address
            ));
        }
        let mut before = listeners[..at].iter();
        if let Some(other) = before.find(|other| other.address.conflicts_with(address)) {
            problems.push(format!(
                "{} is {address}, and {} is {}: each needs an address of its own",
                one.key(),
                other.key(),
                other.address
            ));
        }
    }
    listeners
}
