//! `[server]` and `[admin]`: the sockets, their connections, and who may use the
//! admin listener.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::containers::{list, one_or_more, optional_table, tables};
use super::key::{Setting, keys};
use super::kinds::{
    DAY, Flag, MILLI, ParsedText, STRING, choice, integer, optional, seconds, size, text, time,
    when,
};
use super::problem::{FileSpan, Path};
use crate::admin::host;
use crate::listener::{self, ListenAddress, ListenerSettings, address_hint};
use crate::tls::{CertificateFiles, TlsSettings, TlsVersion};

/// Sockets, threads and connections.
#[derive(Clone, Debug, Serialize)]
pub struct ServerSettings {
    /// The addresses of the listeners that need no other settings.
    #[serde(serialize_with = "one_or_more_addresses")]
    pub listen: Vec<ListenAddress>,
    /// Threads that serve; 0 for one per core.
    pub workers: usize,
    /// How they share the work.
    pub runtime: Runtime,
    /// The time from the closing of the listeners to the end.
    #[serde(serialize_with = "crate::units::serialize")]
    pub drain_timeout: Duration,
    /// The time from the stop signal until listeners close.
    #[serde(serialize_with = "crate::units::serialize")]
    pub drain_delay: Duration,
    /// How connections are served.
    #[serde(flatten)]
    pub connections: listener::Settings,
}

/// How threads share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// A runtime for each thread; a connection stays with the one that
    /// accepted it.
    PerCore,
    /// One runtime; its threads steal work from each other.
    WorkStealing,
}

impl Runtime {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 2] = [
        ("per-core", Self::PerCore),
        ("work-stealing", Self::WorkStealing),
    ];
}

/// The admin listener.
#[derive(Clone, Debug, Serialize)]
pub struct AdminSettings {
    /// The address that the operator connects to.
    pub listen: SocketAddr,
    /// A file with the token that requests need, unless it comes from the
    /// environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The names that it answers to in `Host`, beside localhost and any address.
    pub hosts: Vec<String>,
    /// Whether `/readyz` fails until each tip that a route goes by has been known
    /// once.
    pub ready_needs_tips: bool,
}

const PUBLIC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

const ADDRESS: ParsedText<SocketAddr> = text(
    "an address and a port, such as \"127.0.0.1:8080\"",
    "^([0-9.]+|\\[[0-9A-Fa-f:.]+(%[0-9]+)?\\]):[0-9]+$",
    |text| {
        text.parse()
            .map_err(|_not_one| address_hint(text).unwrap_or_default())
    },
);

const LISTEN_ADDRESS: ParsedText<ListenAddress> = text(
    "an address and a port, such as \"127.0.0.1:8080\", or the path of a unix socket (at most 107 bytes), such as \"unix:/run/ordgate/http.sock\"",
    "^unix:.{1,107}$|^([0-9.]+|\\[[0-9A-Fa-f:.]+(%[0-9]+)?\\]):[0-9]+$",
    |text| {
        text.parse()
            .map_err(|()| address_hint(text).unwrap_or_default())
    },
);

const NAME: ParsedText<String> = text(
    "1 to 32 of a-z, 0-9 and -, but not \"public\" or \"admin\"",
    "^[a-z0-9-]{1,32}$",
    |text| {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_name = (1..=32).contains(&text.len()) && text.bytes().all(is_allowed);
        match is_name && text != "public" && text != "admin" {
            true => Ok(text.to_owned()),
            false => Err(String::new()),
        }
    },
);

const MODE: ParsedText<FileMode> = text(
    "permissions as octal digits, such as \"0660\"",
    "^0?[0-7]{3}$",
    |text| {
        let digits = text.strip_prefix('0').unwrap_or(text);
        match digits.len() == 3 {
            true => u32::from_str_radix(digits, 8)
                .map(FileMode)
                .map_err(|_not_octal| String::new()),
            false => Err(String::new()),
        }
    },
);

/// Permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileMode(u32);

impl std::fmt::Display for FileMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

const HOST: ParsedText<String> = text(
    "a host name without a port, such as \"ordgate.internal\"",
    "^[^:/@]*[^:/@.]$|^\\[.*\\]$",
    |text| when(host::is_name(text), text),
);

keys! {
    /// Sockets, threads and client connections.
    pub(super) struct ServerKeys {
        /// The address and port for clients, or a list of several. Port 0 takes a
        /// free port, which the ready line names.
        ///
        /// "unix:/path" is a unix socket; its connections count as coming from
        /// 127.0.0.1. Listeners with settings of their own are [[listener]] tables; if
        /// there are some and this is not set, only they are opened. A socket from
        /// systemd takes precedence (LISTEN_FDS; see deploy/systemd).
        listen: Vec<ListenAddress> = one_or_more(LISTEN_ADDRESS) => vec![PUBLIC.into()], shown();
        /// The number of threads that serve requests; 0 for one per core.
        ///
        /// A change needs a restart.
        workers: usize = integer(0..=1024) => 0, shown();
        /// How threads share the work: "per-core" or "work-stealing".
        ///
        /// With "per-core", each thread has its own runtime, and a connection stays
        /// with the thread that accepted it. This needs the least CPU time. With
        /// "work-stealing", all threads share one runtime and take work from each
        /// other. This spreads the load better when other programs use the same
        /// cores. A change needs a restart.
        runtime: Runtime = choice(&Runtime::NAMES) => Runtime::PerCore;
        /// How long requests under way may take to finish after SIGTERM.
        drain_timeout: Duration = time(Duration::ZERO, DAY) => seconds(30), shown();
        /// How long listeners stay open after SIGTERM, while /readyz is already 503:
        /// the time that a load balancer needs to notice.
        drain_delay: Duration = time(Duration::ZERO, DAY) => Duration::ZERO;
        /// The most client connections at once. Further ones get 503.
        max_connections: u64 = integer(1..=10_000_000) => 16_384, shown();
        /// The most bytes in a request's head.
        max_head_bytes: usize = integer(1024..=1 << 20) => 16 * 1024;
        /// The most bytes in a request's target.
        max_target_bytes: usize = integer(256..=65_000) => 8 * 1024;
        /// The most field lines in a request's head.
        max_fields: usize = integer(8..=1024) => 100;
        /// The most memory for answers that clients have not read yet.
        ///
        /// A stored response counts once, however many clients it is being sent to.
        /// Beyond this, ordgate disconnects the client that holds the most, first
        /// the connection that has waited longest.
        max_unsent_bytes: u64 = size(1 << 20..=1 << 44) => 128 << 20;
        /// The time from the first byte of a request's head to its last. A slower
        /// one gets 408.
        header_timeout: Duration = time(MILLI, DAY) => seconds(10);
        /// How long a connection may be without a request.
        idle_timeout: Duration = time(MILLI, DAY) => seconds(75);
        /// How long an answer may take once the client has closed its side of the
        /// connection.
        half_closed_timeout: Duration = time(MILLI, DAY) => seconds(10);
        /// How long a client may read nothing of its answer before it is
        /// disconnected.
        write_timeout: Duration = time(MILLI, DAY) => seconds(30);
        /// The bytes that a client must read per second in the long run; "0B" for no
        /// minimum.
        ///
        /// Each byte that the client reads extends its time by what it may take at
        /// this rate, up to `write_timeout`.
        min_send_rate: u64 = size(0..=1 << 30) => 1024;
    }
}

keys! {
    /// A listener with settings of its own: [[listener]].
    ///
    /// A reload opens and closes listeners, and leaves those alone whose address stays.
    pub(super) struct ListenerKeys {
        /// A name, which selects a socket from systemd (FileDescriptorName=).
        name: Option<String> = optional(NAME) => None, example("\"edge\"");
        /// The address and port, or "unix:/path".
        address: ListenAddress = LISTEN_ADDRESS => PUBLIC.into(), required();
        /// The permissions of a unix socket's file: who may connect.
        mode: FileMode = MODE => FileMode(ListenerSettings::DEFAULT_MODE);
        /// Whether each connection begins with a PROXY header, version 1 or 2, which has
        /// the client's address.
        ///
        /// Only the proxies in clients.trusted_proxies may connect then; others are
        /// disconnected.
        proxy_protocol: bool = Flag => false;
        tls: Option<TlsKeys> = optional_table() => None;
    }
}

keys! {
    /// TLS on the listener: [listener.tls]. Clients then use https.
    pub(super) struct TlsKeys {
        /// The oldest version of TLS that clients may use: "1.2" or "1.3".
        min_version: TlsVersion = choice(&TlsVersion::NAMES) => TlsVersion::Tls12;
        /// The certificates, each with its private key: a list such as
        /// [{ chain = "cert.pem", key = "key.pem" }].
        ///
        /// A client gets the certificate that has the name it asks for (SNI), or has a
        /// wildcard for it, else the first one. A name may have an ECDSA certificate
        /// and an RSA one; a client gets the one that it can check. ordgate reads the
        /// files again on a reload, and every minute, and uses what has changed. With
        /// `serve --sandbox`, a listener without certificates makes its own.
        certificates: Vec<(FileSpan, CertificateKeys)> = tables() => Vec::new();
    }
}

keys! {
    /// A certificate and its private key.
    pub(super) struct CertificateKeys {
        /// A PEM file with the certificate, and after it the certificates that lead to
        /// an authority.
        chain: String = STRING => String::new(), required(),
            example("\"/etc/ordgate/cert.pem\"");
        /// A PEM file with the private key; it may be the same file.
        ///
        /// The file must not be readable by others or writable by its group (chmod
        /// 600).
        key: String = STRING => String::new(), required(), example("\"/etc/ordgate/key.pem\"");
    }
}

keys! {
    /// The admin listener: /healthz, /readyz, /metrics, /status, /explain, /purge
    /// and /reload.
    pub(super) struct AdminKeys {
        /// The address and port of the admin listener. If it is not a loopback address,
        /// the admin token is required.
        ///
        /// The admin token comes from the environment variable ORDGATE_ADMIN_TOKEN or
        /// from `token_file`. When there is one, every request except those for
        /// /healthz and /readyz must have `authorization: Bearer TOKEN` with it, on any
        /// address. A change of the address needs a restart.
        listen: SocketAddr = ADDRESS => ADMIN, shown();
        /// A file with the token, unless ORDGATE_ADMIN_TOKEN is set.
        ///
        /// The file must not be readable by others or writable by its group (chmod
        /// 600).
        token_file: Option<String> = optional(STRING) => None,
            example("\"/etc/ordgate/admin-token\""), shown();
        /// The names that requests may have in `Host`, beside localhost and any IP
        /// address.
        ///
        /// Other names get 421, because a web page can make its own name lead to this
        /// address. /healthz and /readyz answer to any name.
        hosts: Vec<String> = list(HOST) => Vec::new();
        /// Whether /readyz fails until ordgate has once known each tip that a route
        /// uses. A wrong or missing upstream shows up there first.
        ready_needs_tips: bool = Flag => true;
    }
}

impl ServerKeys {
    /// The settings, with what each client may hold.
    pub(super) fn settings(self, per_client: Option<listener::PerClient>) -> ServerSettings {
        ServerSettings {
            listen: self.listen.value,
            drain_delay: *self.drain_delay,
            workers: *self.workers,
            runtime: *self.runtime,
            drain_timeout: *self.drain_timeout,
            connections: listener::Settings {
                max_connections: *self.max_connections,
                max_head_bytes: *self.max_head_bytes,
                max_target_bytes: *self.max_target_bytes,
                max_fields: *self.max_fields,
                max_unsent_bytes: *self.max_unsent_bytes,
                per_client,
                times: listener::ConnectionTimeouts {
                    header_timeout: *self.header_timeout,
                    idle_timeout: *self.idle_timeout,
                    half_closed_timeout: *self.half_closed_timeout,
                    write_timeout: *self.write_timeout,
                    min_send_rate: *self.min_send_rate,
                },
            },
        }
    }
}

impl AdminKeys {
    pub(super) fn settings(self) -> AdminSettings {
        AdminSettings {
            listen: *self.listen,
            token_file: self.token_file.value.map(Into::into),
            hosts: self.hosts.value,
            ready_needs_tips: *self.ready_needs_tips,
        }
    }
}

impl TlsKeys {
    /// The settings of a listener of this path, which has the table at this place.
    fn settings(self, listener: &Path<'_>, at: &FileSpan) -> TlsSettings {
        let path = listener.key("tls").key("certificates");
        let certificates = self.certificates.value.into_iter();
        let certificates = certificates.map(|(span, keys)| CertificateFiles {
            location: path.located(&span),
            chain: keys.chain.value.into(),
            key: keys.key.value.into(),
        });
        TlsSettings {
            min_version: *self.min_version,
            certificates: certificates.collect(),
            location: path.located(at),
        }
    }
}

/// The key of the admin listener's address.
const ADMIN_LISTEN: &str = "admin.listen";

/// The listeners of `[[listener]]` tables. Reports addresses and names that are there
/// twice, the admin listener's included.
pub(super) fn listeners(
    tables: Vec<(FileSpan, ListenerKeys)>,
    root: &Path<'_>,
    server: &mut Setting<ServerKeys>,
    admin: &AdminKeys,
) -> Vec<ListenerSettings> {
    let path = root.key("listener");
    let listen = &mut server.value.listen;
    if !tables.is_empty() && !listen.is_set() {
        listen.value.clear();
    }
    // Where each key is set; a default has no place.
    let mut taken: Vec<(ListenAddress, &str, Option<FileSpan>)> = Vec::new();
    if !admin.listen.is_wrong {
        let address = ListenAddress::Tcp(*admin.listen);
        taken.push((address, ADMIN_LISTEN, admin.listen.at.clone()));
    }
    let mut check = |address: &ListenAddress, key: &'static str, at: Option<FileSpan>| {
        let mut known = taken.iter();
        let conflict = known.find(|(known, key, _)| match *key {
            ADMIN_LISTEN => known.overlaps(address),
            _ => known.conflicts_with(address),
        });
        if let Some((known, other, before)) = conflict {
            let later = at.clone().into_iter().chain(before.clone());
            let later = later.max_by_key(|span| span.start);
            let part = match address {
                ListenAddress::Tcp(_) => "port",
                ListenAddress::Unix(_) => "path",
            };
            let what = match known == address {
                true => format!("{key} and {other} are both {address}"),
                false => format!("{key} is {address}, which overlaps with {other}, {known}"),
            };
            root.problem_whole(
                &later.unwrap_or_default(),
                format!("{what}; each needs a {part} of its own"),
            );
        }
        taken.push((address.clone(), key, at));
    };
    if !listen.is_wrong {
        for address in &listen.value {
            check(address, "server.listen", listen.at.clone());
        }
    }
    let mut listeners: Vec<ListenerSettings> = Vec::new();
    for (span, keys) in tables {
        if keys.address.is_set() && !keys.address.is_wrong {
            check(&keys.address, "listener.address", keys.address.at.clone());
        }
        if let Some(mode) = &keys.mode.at
            && keys.address.tcp().is_some()
        {
            path.key("mode")
                .problem(mode, "goes with an address that is a unix socket's");
        }
        let mut known = listeners.iter();
        if keys.name.is_some() && known.any(|known| known.name == keys.name.value) {
            let name = keys.name.as_deref().unwrap_or_default();
            path.key("name").problem(
                keys.name.at_or(&span),
                format!("is \"{name}\", which is also the name of another listener"),
            );
        }
        listeners.push(ListenerSettings {
            name: keys.name.value,
            address: keys.address.value,
            mode: keys.mode.value.0,
            proxy_protocol: *keys.proxy_protocol,
            tls: match (keys.tls.value, keys.tls.at) {
                (Some(tls), at) => Some(tls.settings(&path, &at.unwrap_or(span))),
                (None, _) => None,
            },
        });
    }
    listeners
}

/// One address, or a list of them.
fn one_or_more_addresses<S: serde::Serializer>(
    addresses: &[ListenAddress],
    to: S,
) -> Result<S::Ok, S::Error> {
    match addresses {
        [one] => one.serialize(to),
        all => to.collect_seq(all),
    }
}
