//! A gateway in this process, on ports of its own.

mod view;

pub(crate) use view::Tip;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ordgate::admin::Token;
use ordgate::cache::date;
use ordgate::client_tokens::TokenFile;
use ordgate::clock::Clock;
use ordgate::probe;
use ordgate::sandbox::Sandbox;
use ordgate::serve::{LoadedConfig, Options, Server, StartError};
use ordgate::supervisor::InheritedSockets;
use ordgate::upstream::ProviderKeys;
use ordgate::upstream::keys::ApiKey;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{Answer, Client, Endpoint, Transport, Upstream, within};

/// What a gateway is to be like.
pub(crate) struct Setup {
    source: SharedSource,
    sandbox: Option<Sandbox>,
    clock: Clock,
}

/// What a gateway reads when it starts, and again when it reloads.
#[derive(Clone, Default)]
pub(crate) struct Source {
    /// The content of proxy.toml.
    pub(crate) config: toml::Table,
    /// Keys, separated by commas; empty for none.
    pub(crate) keys: String,
    /// Keys of single upstreams, by the upstream's name.
    pub(crate) own_keys: BTreeMap<String, String>,
    pub(crate) token: Option<Token>,
    /// The content of the token file, where the configuration names one.
    pub(crate) client_tokens: String,
    /// The URL of the engine that replicas share; empty for none.
    pub(crate) engine: String,
}

/// A source that a test may change while the gateway runs.
pub(crate) type SharedSource = Arc<Mutex<Source>>;

impl Source {
    fn fresh(&self) -> Result<LoadedConfig, Vec<String>> {
        let config = view::parse(&self.config.to_string(), &self.engine);
        let list = |keys: &str| match keys {
            "" => Ok(Vec::new()),
            keys => ApiKey::list(keys).map_err(|error| vec![error.to_string()]),
        };
        let mut keys = ProviderKeys::default();
        keys.shared = list(&self.keys)?;
        for (upstream, own) in &self.own_keys {
            keys.own.insert(upstream.as_str().into(), list(own)?);
        }
        let mut config = config?;
        if config.tokens.is_some() {
            let tokens = TokenFile::parse("test.tokens", &self.client_tokens);
            config.tokens = Some(tokens.map_err(|problem| vec![problem])?.into());
        }
        Ok(LoadedConfig {
            config,
            keys,
            admin_token: self.token,
        })
    }
}

/// The gateway of most tests: small, with a budget that is not in the way.
const CONFIG: &str = r#"
    builtin_routes = false
    [server]
    listen = "127.0.0.1:0"
    workers = 1
    drain_timeout = "0s"
    [admin]
    listen = "127.0.0.1:0"
    [upstream]
    requests_per_minute = 1000000
    requests_per_second = 1000000
"#;

/// The API's routes with fixed lifetimes: the upstream gets no requests but those
/// of clients.
pub(crate) const ROUTES: &str = include_str!("routes.toml");

impl Setup {
    /// A gateway before this upstream.
    pub(crate) fn before(upstream: &Upstream) -> Self {
        Self::alone().config(&upstream.config())
    }

    /// A gateway before whatever there is at a URL.
    pub(crate) fn at(url: &str) -> Self {
        Self::alone().config(&format!("upstream.url = \"{url}\""))
    }

    /// A gateway before several base URLs, the preferred one first.
    pub(crate) fn before_all(upstreams: &[&Upstream]) -> Self {
        Self::alone().config(&urls(upstreams))
    }

    /// A gateway without an upstream.
    pub(crate) fn alone() -> Self {
        let config = format!("{CONFIG}\n{ROUTES}");
        Self::reading(&SharedSource::default()).config(&config)
    }

    /// A gateway that reads this source, and nothing else.
    pub(crate) fn reading(source: &SharedSource) -> Self {
        Self {
            source: source.clone(),
            sandbox: None,
            clock: Clock::machine(),
        }
    }

    /// Adds to the configuration, or overrides what is there.
    pub(crate) fn config(self, text: &str) -> Self {
        merge(&mut self.source.lock().unwrap().config, text);
        self
    }

    /// With the routes as they are shipped, in mode `chain`.
    pub(crate) fn chain(self) -> Self {
        let mut source = self.source.lock().unwrap();
        source.config.remove("route");
        source.config.remove("builtin_routes");
        drop(source);
        self
    }

    /// With these keys, separated by commas.
    pub(crate) fn keys(self, keys: &str) -> Self {
        keys.clone_into(&mut self.source.lock().unwrap().keys);
        self
    }

    /// With these keys for one upstream alone.
    pub(crate) fn own_keys(self, upstream: &str, keys: &str) -> Self {
        let own = (upstream.to_owned(), keys.to_owned());
        self.source.lock().unwrap().own_keys.extend([own]);
        self
    }

    /// With a token file of these lines.
    pub(crate) fn client_tokens(self, lines: &str) -> Self {
        lines.clone_into(&mut self.source.lock().unwrap().client_tokens);
        self.config("clients.token_file = \"test.tokens\"")
    }

    /// With an admin token.
    pub(crate) fn token(self, token: &str) -> Self {
        self.source.lock().unwrap().token = Some(Token::new(token));
        self
    }

    /// With this sandbox for an upstream.
    pub(crate) fn sandbox(mut self, sandbox: &Sandbox) -> Self {
        self.sandbox = Some(sandbox.clone());
        self
    }

    /// With a clock that moves when [`Gateway::advance`] says so.
    pub(crate) fn manual(self) -> Self {
        self.clock(&Clock::manual())
    }

    /// With this clock.
    pub(crate) fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    pub(crate) fn start(self) -> Gateway {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn try_start(self) -> Result<Gateway, StartError> {
        let source = self.source.lock().unwrap().clone();
        let fresh = source.fresh();
        let fresh = fresh.unwrap_or_else(|p| panic!("{p:#?}\n{}", source.config));
        let again = self.source.clone();
        let server = Server::start(Options {
            loaded: fresh,
            config_name: "test.toml".to_owned(),
            load: Box::new(move || again.lock().unwrap().fresh()),
            sandbox: self.sandbox,
            clock: self.clock.clone(),
            sockets: InheritedSockets::default(),
        })?;
        Ok(Gateway {
            public: first_tcp(&server),
            admin: server.admin,
            server: Some(server),
            clock: self.clock,
            source: self.source,
        })
    }
}

/// The configuration of several base URLs.
pub(crate) fn urls(upstreams: &[&Upstream]) -> String {
    let urls: Vec<_> = upstreams.iter().map(|upstream| upstream.url()).collect();
    format!("upstream.url = {urls:?}")
}

/// Percent-encoded whole.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The routes of the shipped configuration, as text.
pub(crate) fn shipped_routes() -> &'static str {
    let shipped = include_str!("../../proxy.toml");
    &shipped[shipped.find("\n[[route]]").unwrap()..]
}

/// Adds to a configuration, or overrides what is there.
pub(crate) fn merge(into: &mut toml::Table, text: &str) {
    fold(into, text.parse().unwrap());
}

fn fold(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => fold(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// A running gateway; it stops when it is dropped.
pub(crate) struct Gateway {
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    server: Option<Server>,
    clock: Clock,
    pub(crate) source: SharedSource,
}

/// The first public address that is TCP; the unspecified one if all are unix sockets.
fn first_tcp(server: &Server) -> SocketAddr {
    let listeners = server.bound_listeners();
    let first = listeners.iter().find_map(|one| one.address.tcp());
    first.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
}

impl Gateway {
    /// One with nothing special about it.
    pub(crate) fn before(upstream: &Upstream) -> Self {
        Setup::before(upstream).start()
    }

    /// The same with this configuration.
    pub(crate) fn with(upstream: &Upstream, config: &str) -> Self {
        Setup::before(upstream).config(config).start()
    }

    /// A new connection, on which a GET has been sent.
    pub(crate) async fn start_get(&self, target: &str) -> Client {
        let mut client = self.client().await;
        client.send_request("GET", target, &[]).await;
        client
    }

    /// A new connection to the public side, in HTTP/1.1.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.public).await
    }

    /// A new connection to the public side from another address of this machine, such as
    /// 127.0.0.2: as another client.
    pub(crate) async fn client_from(&self, from: [u8; 4]) -> Client {
        Client::connect_from(from, self.public).await
    }

    /// Where clients connect that use this transport.
    pub(crate) fn endpoint(&self, transport: Transport) -> Endpoint {
        let address = match transport {
            Transport::Http1 | Transport::H2c => self.public,
            Transport::H2Tls => self.tls(),
        };
        Endpoint { address, transport }
    }

    /// The listener with TLS.
    pub(crate) fn tls(&self) -> SocketAddr {
        let mut listeners = self.server().bound_listeners().into_iter();
        let found = listeners.find(|listener| listener.settings.tls.is_some());
        found.unwrap().address.tcp().unwrap()
    }

    /// A GET on a connection of its own.
    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.client().await.get(target).await
    }

    /// Any request on a connection of its own.
    pub(crate) async fn request(
        &self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Answer {
        self.client().await.request(method, target, fields).await
    }

    /// A GET on the admin listener.
    pub(crate) async fn admin(&self, target: &str) -> Answer {
        Client::connect(self.admin).await.get(target).await
    }

    /// A POST on the admin listener.
    pub(crate) async fn admin_post(&self, target: &str) -> Answer {
        let mut client = Client::connect(self.admin).await;
        client.request("POST", target, &[]).await
    }

    /// A purge by these selectors, as they stand in a query.
    pub(crate) async fn purge(&self, query: &str) -> Answer {
        self.admin_post(&format!("/purge?{query}")).await
    }

    /// What the admin listener says of a public URL.
    pub(crate) async fn explain(&self, url: &str) -> Value {
        let answer = self.admin(&format!("/explain?url={}", encoded(url))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// Adds to the configuration, or overrides what is there, and reloads.
    pub(crate) async fn reload(&self, text: &str) -> Answer {
        merge(&mut self.source.lock().unwrap().config, text);
        self.reload_as_it_is().await
    }

    /// Takes these keys, separated by commas, or none, and reloads.
    pub(crate) async fn rekey(&self, keys: &str) -> Answer {
        keys.clone_into(&mut self.source.lock().unwrap().keys);
        self.reload_as_it_is().await
    }

    /// Takes these lines for the token file, and reloads.
    pub(crate) async fn reload_client_tokens(&self, lines: &str) -> Answer {
        lines.clone_into(&mut self.source.lock().unwrap().client_tokens);
        self.reload_as_it_is().await
    }

    /// Reloads what there is.
    pub(crate) async fn reload_as_it_is(&self) -> Answer {
        self.admin_post("/reload").await
    }

    /// Moves a manual clock.
    pub(crate) fn advance(&self, millis: u64) {
        self.clock.advance(std::time::Duration::from_millis(millis));
    }

    /// The time of day, by the gateway's clock.
    pub(crate) fn wall(&self) -> std::time::SystemTime {
        self.clock.wall_now()
    }

    /// Sets the time of day of the gateway's clock, as an operator may.
    pub(crate) fn set_wall(&self, wall: std::time::SystemTime) {
        self.clock.set_wall(wall);
    }

    /// The date so many seconds from now, by the gateway's clock.
    pub(crate) fn date(&self, seconds: i64) -> String {
        let span = std::time::Duration::from_secs(seconds.unsigned_abs());
        let now = self.wall();
        let then = if seconds < 0 { now - span } else { now + span };
        date::value(then).to_str().unwrap().to_owned()
    }

    /// Probes a tip now, and not when its time has come.
    pub(crate) async fn probe(&self, tip: u16) -> bool {
        probe::probe(&self.server().first.fill, tip).await.is_some()
    }

    /// Checks the blocks that a new tip has left unproven.
    pub(crate) async fn check_blocks(&self, tip: u16) {
        self.server().first.fill.check_blocks(tip).await;
    }

    /// Targets of plain routes that are being fetched: `/status` does not tell.
    pub(crate) fn relayed(&self) -> usize {
        self.server().first.fill.collapse.len()
    }

    /// The server itself.
    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Drains it, and waits for its end, which must come.
    pub(crate) async fn end(mut self) {
        let server = self.server.take().unwrap();
        server.drain(std::time::Duration::ZERO);
        let (tell, ended) = tokio::sync::oneshot::channel();
        // A thread of its own, which ends with it: the runtime would keep one.
        let waiting = std::thread::spawn(move || {
            server.wait();
            let _ = tell.send(());
        });
        within("a drained server ends", ended).await.unwrap();
        waiting.join().unwrap();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.drain(std::time::Duration::ZERO);
            server.wait();
        }
    }
}
