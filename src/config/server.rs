//! The tables of listeners, clients and answers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{Count, DAY, OneOrMore, Size, Time, text};
use crate::cache::coding::Coding;
use crate::listener::{self, ListenAddress, ListenerSettings};
use crate::tls::{CertificateFiles, TlsSettings, TlsVersion};
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<OneOrMore<ListenAddress>>,
    /// The number of threads that serve requests; 0 for one per core. A change needs a
    /// restart.
    pub workers: Count<0, 1024>,
    /// How long requests under way may take to finish after SIGTERM.
    pub drain_timeout: Time<0, DAY>,
    /// How long listeners stay open after SIGTERM, while /readyz is already 503: the time
    /// that a load balancer needs to notice.
    pub drain_delay: Time<0, DAY>,
    /// The most client connections at once. Further ones get 503.
    pub max_connections: Count<1, 10_000_000>,
    /// The most bytes in a request's head.
    pub max_head_bytes: Count<1024, 1_048_576>,
    /// The most memory for answers that clients have not read yet.
    ///
    /// A stored response counts once, however many clients it is being sent to. Beyond
    /// this, ordgate disconnects the client that holds the most, first the connection that
    /// has waited longest.
    pub max_unsent_bytes: Size<1_048_576, 17_592_186_044_416>,
    /// The time from the first byte of a request's head to its last. A slower one gets 408.
    pub header_timeout: Time<1, DAY>,
    /// How long a connection may be without a request.
    pub idle_timeout: Time<1, DAY>,
    /// How long a client may read nothing of its answer before it is disconnected.
    pub write_timeout: Time<1, DAY>,
    /// The bytes that a client must read per second in the long run; "0B" for no minimum.
    ///
    /// Each byte that the client reads extends its time by what it may take at this rate,
    /// up to `write_timeout`.
    pub min_send_rate: Size<0, 1_073_741_824>,
}

/// Where clients connect unless the file says something else.
const PUBLIC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

impl Default for ServerTable {
    fn default() -> Self {
        Self {
            listen: None,
            workers: Count(0),
            drain_timeout: Time::seconds(30),
            drain_delay: Time::seconds(0),
            max_connections: Count(16_384),
            max_head_bytes: Count(16 << 10),
            max_unsent_bytes: Size(128 << 20),
            header_timeout: Time::seconds(10),
            idle_timeout: Time::seconds(75),
            write_timeout: Time::seconds(30),
            min_send_rate: Size(1024),
        }
    }
}

impl ServerTable {
    /// The settings of connections, with what each client may hold.
    pub(super) fn connections(&self, limit: &LimitTable) -> listener::Settings {
        listener::Settings {
            max_connections: *self.max_connections,
            max_head_bytes: *self.max_head_bytes as usize,
            max_target_bytes: listener::MAX_TARGET_BYTES,
            max_fields: listener::MAX_FIELDS,
            max_unsent_bytes: *self.max_unsent_bytes,
            per_client: limit.enabled.then(|| listener::PerClient {
                connections: limit.connections.small(),
                tls_handshakes_per_second: limit.tls_handshakes_per_second.small(),
                unsent_bytes: *limit.unsent_bytes,
            }),
            times: listener::ConnectionTimeouts {
                header_timeout: *self.header_timeout,
                idle_timeout: *self.idle_timeout,
                half_closed_timeout: listener::HALF_CLOSED_TIMEOUT,
                write_timeout: *self.write_timeout,
                min_send_rate: *self.min_send_rate,
            },
        }
    }
}

/// A listener with settings of its own: [[listener]].
///
/// Other addresses and modes need a restart.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerTable {
    /// A name of a-z, 0-9 and -, which selects a socket from systemd (FileDescriptorName=).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The address and port, or "unix:/path".
    address: ListenAddress,
    /// The permissions of a unix socket's file, in octal digits: who may connect. "0660" if
    /// it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    /// Whether each connection begins with a PROXY header, version 1 or 2, which has the
    /// client's address.
    ///
    /// Only the proxies in clients.trusted_proxies may connect then; others are
    /// disconnected.
    #[serde(default)]
    proxy_protocol: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls: Option<TlsTable>,
}

/// TLS on the listener: [listener.tls]. Clients then use https.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct TlsTable {
    /// The oldest version of TLS that clients may use.
    min_version: TlsVersion,
    /// The certificates, each with its private key: a list such as
    /// [{ chain = "cert.pem", key = "key.pem" }].
    ///
    /// A client gets the certificate that has the name it asks for (SNI), or has a wildcard
    /// for it, else the first one. A name may have an ECDSA certificate and an RSA one; a
    /// client gets the one that it can check. ordgate reads the files again on a reload, and
    /// every minute, and uses what has changed. With `serve --sandbox`, a listener without
    /// certificates makes its own.
    certificates: Vec<CertificateTable>,
}

impl Default for TlsTable {
    fn default() -> Self {
        Self {
            min_version: TlsVersion::Tls12,
            certificates: Vec::new(),
        }
    }
}

/// A certificate and its private key.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CertificateTable {
    /// A PEM file with the certificate, and after it the certificates that lead to an
    /// authority.
    chain: PathBuf,
    /// A PEM file with the private key; it may be the same file. It must not be readable by
    /// others or writable by its group (chmod 600).
    key: PathBuf,
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
    #[serde(with = "text")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct Network(
    #[serde(with = "text")]
    #[schemars(with = "String")]
    pub(super) IpNet,
);

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let network = address.or_else(|_| text.parse::<IpNet>().map(|network| network.trunc()));
        network.map(Self).map_err(|_neither| {
            serde::de::Error::custom(
                "allowed is an address or a network, such as \"10.0.0.0/8\" or \"::1\"",
            )
        })
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
    /// Whether cache-status has the cache key.
    pub(super) cache_status_key: bool,
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
            cache_status_key: false,
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
    pub(super) requests_per_minute: Count<1, 60_000_000>,
    /// The most requests that a client may send at once, after a pause.
    pub(super) burst: Count<1, 60_000_000>,
    /// Of these, the requests per minute that may go to the upstream because nothing fresh
    /// is stored; 0 for no such limit.
    ///
    /// After a pause, a client may send as many at once. Beyond the limit, it gets a stale
    /// answer within the bounds of its route, or 429. A request that waits for another
    /// client's fetch does not count. This limit is for single clients that send far too
    /// much: the upstream's budget is shared between clients in any case.
    pub(super) misses_per_minute: Count<0, 60_000_000>,
    /// The most connections of one client at once. Further ones get 429. Trusted proxies
    /// may have any number.
    pub(super) connections: Count<1, 10_000_000>,
    /// The TLS handshakes per second of one client. Further connections are closed. Trusted
    /// proxies may do any number.
    pub(super) tls_handshakes_per_second: Count<1, 1_000_000>,
    /// The most that one client may hold of `server.max_unsent_bytes`.
    ///
    /// Beyond this, ordgate closes its connections, the longest waiting first, except for
    /// the last one. Trusted proxies may hold any amount.
    pub(super) unsent_bytes: Size<65_536, 17_592_186_044_416>,
}

impl Default for LimitTable {
    fn default() -> Self {
        Self {
            enabled: true,
            requests_per_minute: Count(3000),
            burst: Count(3000),
            misses_per_minute: Count(1200),
            connections: Count(512),
            tls_handshakes_per_second: Count(10),
            unsent_bytes: Size(32 << 20),
        }
    }
}

impl LimitTable {
    /// Lifts the limits on requests.
    pub(super) fn lift(&mut self, most: NonZeroU32) {
        self.requests_per_minute = Count(u64::from(most.get()));
        self.burst = self.requests_per_minute;
        self.misses_per_minute = Count(0);
    }
}

/// The listeners of a file: those of `server.listen`, then those with settings of their own.
/// Says which names or addresses are there twice, the admin listener's included.
pub(super) fn listeners(
    server: &ServerTable,
    tables: &[ListenerTable],
    admin: &AdminTable,
    problems: &mut Vec<String>,
) -> Vec<ListenerSettings> {
    let plain = match &server.listen {
        Some(listed) => listed.0.clone(),
        None if tables.is_empty() => vec![PUBLIC.into()],
        None => Vec::new(),
    };
    let mut listeners: Vec<_> = plain.into_iter().map(ListenerSettings::at).collect();
    listeners.extend(tables.iter().map(|table| table.settings(problems)));
    for (at, one) in listeners.iter().enumerate() {
        let address = &one.address;
        if address.overlaps(&ListenAddress::Tcp(admin.listen)) {
            problems.push(format!(
                "{} is {address}, and admin.listen is {}: each needs a port of its own",
                one.key(),
                admin.listen
            ));
        }
        let before = &listeners[..at];
        if let Some(other) = before
            .iter()
            .find(|other| other.address.conflicts_with(address))
        {
            problems.push(format!(
                "{} is {address}, and {} is {}: each needs an address of its own",
                one.key(),
                other.key(),
                other.address
            ));
        }
        if let Some(name) = &one.name
            && before.iter().any(|other| other.name.as_ref() == Some(name))
        {
            problems.push(format!(
                "listener.name is {name:?} twice: each needs its own"
            ));
        }
    }
    listeners
}

impl ListenerTable {
    fn settings(&self, problems: &mut Vec<String>) -> ListenerSettings {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if let Some(name) = &self.name
            && (!(1..=32).contains(&name.len())
                || !name.bytes().all(is_allowed)
                || matches!(&**name, "public" | "admin"))
        {
            problems.push(format!(
                "listener.name is {name:?}; allowed are 1 to 32 of a-z, 0-9 and -, but not \"public\" or \"admin\""
            ));
        }
        let mode = self.mode.as_deref().unwrap_or("0660");
        let octal = u32::from_str_radix(mode, 8).ok();
        let octal = octal.filter(|mode| *mode <= 0o777);
        if octal.is_none() {
            problems.push(format!(
                "listener.mode is {mode:?}; allowed are permissions as octal digits, such as \"0660\""
            ));
        }
        if self.mode.is_some() && self.address.tcp().is_some() {
            problems.push(format!(
                "listener.mode is for unix sockets, and this listener's address is {}",
                self.address
            ));
        }
        let of = |tls: &TlsTable| {
            let location = format!("listener.tls.certificates of {}", self.address);
            let files = tls.certificates.iter().map(|one| CertificateFiles {
                chain: one.chain.clone(),
                key: one.key.clone(),
                location: location.clone(),
            });
            TlsSettings {
                min_version: tls.min_version,
                certificates: files.collect(),
                location: location.clone(),
            }
        };
        ListenerSettings {
            name: self.name.clone(),
            address: self.address.clone(),
            mode: octal.unwrap_or(ListenerSettings::DEFAULT_MODE),
            proxy_protocol: self.proxy_protocol,
            tls: self.tls.as_ref().map(of),
        }
    }
}
