//! A gateway in this process, on ports of its own.

use std::net::SocketAddr;

use ordgate::admin::Token;
use ordgate::cache::date;
use ordgate::clock::Clock;
use ordgate::config::Config;
use ordgate::sandbox::Sandbox;
use ordgate::serve::{Options, Server, StartError};
use ordgate::upstream::keys::ApiKey;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{Answer, Client, Upstream};

/// What a gateway is to be like.
pub(crate) struct Setup {
    config: toml::Table,
    keys: Vec<ApiKey>,
    token: Option<Token>,
    sandbox: Option<Sandbox>,
    clock: Clock,
}

/// The gateway of most tests: small, with a budget that is not in the way.
const CONFIG: &str = r#"
    [server]
    listen = "127.0.0.1:0"
    workers = 1
    drain_timeout = "0s"
    half_closed_timeout = "300ms"
    [admin]
    listen = "127.0.0.1:0"
    [upstream]
    requests_per_minute = 1000000
    requests_per_second = 1000000
"#;

/// The API's routes with fixed times: nothing is asked for them but what clients
/// ask.
pub(crate) const ROUTES: &str = include_str!("routes.toml");

impl Setup {
    /// A gateway before this upstream.
    pub(crate) fn before(upstream: &Upstream) -> Self {
        Self::at(&upstream.url())
    }

    /// A gateway before whatever there is at a URL.
    pub(crate) fn at(url: &str) -> Self {
        Self::alone().config(&format!("upstream.url = \"{url}\""))
    }

    /// A gateway without an upstream.
    pub(crate) fn alone() -> Self {
        Self {
            config: format!("{CONFIG}\n{ROUTES}").parse().unwrap(),
            keys: Vec::new(),
            token: None,
            sandbox: None,
            clock: Clock::machine(),
        }
    }

    /// Adds to the configuration, or overrides what is there.
    pub(crate) fn config(mut self, text: &str) -> Self {
        merge(&mut self.config, text.parse().unwrap());
        self
    }

    /// With the routes as they are shipped, in mode `chain`.
    pub(crate) fn chain(mut self) -> Self {
        self.config.remove("route");
        self
    }

    /// With these keys, separated by commas.
    pub(crate) fn keys(mut self, keys: &str) -> Self {
        self.keys = ApiKey::list(keys).unwrap();
        self
    }

    /// With an admin token.
    pub(crate) fn token(mut self, token: &str) -> Self {
        self.token = Some(Token::new(token));
        self
    }

    /// With this sandbox for an upstream.
    pub(crate) fn sandbox(mut self, sandbox: &Sandbox) -> Self {
        self.sandbox = Some(sandbox.clone());
        self
    }

    /// With a clock that moves when [`Gateway::advance`] says so.
    pub(crate) fn manual(mut self) -> Self {
        self.clock = Clock::manual();
        self
    }

    pub(crate) fn start(self) -> Gateway {
        self.try_start().unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn try_start(self) -> Result<Gateway, StartError> {
        let text = self.config.to_string();
        let config = Config::parse("test.toml", &text).unwrap_or_else(|p| panic!("{p:#?}\n{text}"));
        let server = Server::start(Options {
            config,
            config_name: "test.toml".to_owned(),
            keys: self.keys,
            admin_token: self.token,
            sandbox: self.sandbox,
            clock: self.clock.clone(),
        })?;
        Ok(Gateway {
            public: server.public(),
            admin: server.admin(),
            server: Some(server),
            clock: self.clock,
        })
    }
}

/// Percent-encoded whole.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
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
}

impl Gateway {
    /// One with nothing special about it.
    pub(crate) fn before(upstream: &Upstream) -> Self {
        Setup::before(upstream).start()
    }

    /// A new connection to the public side.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.public).await
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

    /// A GET on the admin side.
    pub(crate) async fn admin(&self, target: &str) -> Answer {
        Client::connect(self.admin).await.get(target).await
    }

    /// A purge by these selectors, as they stand in a query.
    pub(crate) async fn purge(&self, query: &str) -> Answer {
        let target = format!("/purge?{query}");
        let mut client = Client::connect(self.admin).await;
        client.request("POST", &target, &[]).await
    }

    /// What the admin side says of a public URL.
    pub(crate) async fn explain(&self, url: &str) -> Value {
        let answer = self.admin(&format!("/explain?url={}", encoded(url))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// Moves a manual clock.
    pub(crate) fn advance(&self, millis: u64) {
        self.clock.advance(std::time::Duration::from_millis(millis));
    }

    /// The date so many seconds from now, by the gateway's clock.
    pub(crate) fn date(&self, seconds: i64) -> String {
        let span = std::time::Duration::from_secs(seconds.unsigned_abs());
        let now = self.clock.wall(self.clock.now());
        let then = if seconds < 0 { now - span } else { now + span };
        date::value(then).to_str().unwrap().to_owned()
    }

    /// Connections that are open now.
    pub(crate) fn connections(&self) -> u64 {
        let meter = &self.server().gateway().meter;
        meter.connections.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// The server itself.
    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.drain();
            server.wait();
        }
    }
}
