//! The tables that are used where the process is made: sockets, clients, the cache, what is
//! kept on disk, traces; and the listeners that follow from them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::{File, refuse};
use crate::connections::{Bounds, PerClient};
use crate::listener::{self, ListenAddress, ListenerSettings};
use crate::units::{Size, Texts, Time};
use crate::{limit, upstream};

/// Sockets, threads and client connections.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ServerTable {
    /// The address and port for clients, or a list of several. Port 0 takes a free port,
    /// which the ready line names. The default is "127.0.0.1:8080", or none where there are
    /// [[listener]] tables.
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
    /// longest. One client may hold half of it, beside its largest answer; then it loses its
    /// connections, the longest waiting first. Trusted proxies may hold any amount.
    ///
    /// An answer that is being stored counts whole until it is stored, also what its client has
    /// read: whoever downloads several large ones at once may lose connections. Raise this then,
    /// or lower `upstream.max_body_bytes`.
    #[serde(with = "Size::<1_048_576>")]
    pub max_unsent_bytes: u64,
    /// How long a connection may be without a request. A request's head may take as long, ten
    /// seconds at most.
    #[serde(with = "Time::<1>")]
    pub idle_timeout: Duration,
    /// How long a client may read nothing of its answer before it is disconnected.
    #[serde(with = "Time::<1>")]
    pub write_timeout: Duration,
}

/// Where clients connect unless the file says something else.
pub(super) const PUBLIC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
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
            idle_timeout: seconds(75),
            write_timeout: seconds(30),
        }
    }
}

impl ServerTable {
    /// The settings of connections, with what each client may hold.
    pub(super) fn connections(&self, limit: &limit::Settings) -> listener::Settings {
        listener::Settings {
            bounds: Bounds {
                connections: self.max_connections.get(),
                unread: self.max_unsent_bytes,
                per_client: limit.enabled.then(|| PerClient {
                    connections: limit.connections.get(),
                    unread: self.max_unsent_bytes / 2,
                }),
            },
            handshakes: limit.enabled.then_some(limit.tls_handshakes_per_second),
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
    #[serde(deserialize_with = "networks", serialize_with = "Texts::serialize")]
    #[schemars(with = "Texts")]
    pub(super) trusted_proxies: Vec<IpNet>,
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

/// Reads networks, or single addresses.
fn networks<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
    Texts::read(from, |text| {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let network = address.or_else(|_| text.parse::<IpNet>().map(|network| network.trunc()));
        network.map_err(|_neither| {
            format!("{text:?} came; allowed is an address or a network, such as \"10.0.0.0/8\" or \"::1\"")
        })
    })
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

/// The cache: its memory, and failures.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheTable {
    /// The most memory for stored responses, with their keys, fields and index. A change needs a
    /// restart.
    #[serde(with = "Size::<1_048_576>")]
    pub max_bytes: u64,
    /// How long a client waits for a fresh answer before it gets a stale one that its route
    /// allows (`stale_if_error`).
    ///
    /// The time counts from when the request went to the upstream. The fetch goes on, and
    /// its answer is stored.
    #[serde(with = "Time::<0>")]
    pub stale_wait: Duration,
}

impl Default for CacheTable {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            stale_wait: Duration::from_secs(2),
        }
    }
}

/// What is kept on disk, so that a restart loses nothing and spends no budget twice.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StateTable {
    /// A directory for what each API key has spent, and for answers. Without it, nothing is
    /// kept on disk.
    ///
    /// It is created if it does not exist; it must belong to ordgate's user, and nobody else
    /// may have access to it. One process uses it at a time. --state and ORDGATE_STATE take
    /// precedence over this key; if none of them is set, systemd's STATE_DIRECTORY is used.
    /// Without a directory, a restart forgets what was spent in the last minute, and may
    /// exceed the budget. A change needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The most bytes of stored answers. A change needs a restart.
    #[serde(with = "Size::<33_554_432>")]
    pub max_bytes: u64,
}

impl Default for StateTable {
    fn default() -> Self {
        Self {
            path: None,
            max_bytes: 1 << 30,
        }
    }
}

/// Traces of requests that are not answered from memory. They are exported by OTLP if the
/// environment names a collector: OTEL_EXPORTER_OTLP_ENDPOINT.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryTable {
    /// The share of requests that are traced, from 0 to 1.
    ///
    /// For a request with `traceparent` that a trusted proxy has sent, the flag in that
    /// field decides.
    pub sample: f64,
}

impl Default for TelemetryTable {
    fn default() -> Self {
        Self { sample: 0.01 }
    }
}

/// The listeners of a file: those of `server.listen`, then those with settings of their own.
/// Says which names or addresses are there twice, the admin listener's included.
pub(super) fn listeners(file: &File, problems: &mut Vec<String>) -> Vec<ListenerSettings> {
    let plain = file.server.listen.iter().cloned();
    let mut listeners: Vec<_> = plain.map(ListenerSettings::at).collect();
    listeners.extend(file.listener.iter().cloned());
    let admin = ListenAddress::Tcp(file.admin.listen);
    let mut names = vec!["public", "admin"];
    let mut addresses = vec![("admin.listen".to_owned(), &admin)];
    for one in &listeners {
        if let Some(name) = &one.name {
            refuse(
                problems,
                !upstream::is_name(name) || names.contains(&&**name),
                format!(
                    "listener.name is {name:?}; allowed are 1 to 32 of a-z, 0-9 and -, but not \"public\", \"admin\" or the name of another listener"
                ),
            );
            names.push(name);
        }
        let (key, address) = (one.key(), &one.address);
        let mut known = addresses.iter();
        if let Some((other, _)) = known.find(|(_, known)| address.conflicts_with(known)) {
            problems.push(format!(
                "{key} and {other} are both {address}: each needs an address of its own"
            ));
        }
        addresses.push((key, address));
    }
    listeners
}
