//! A gateway in this process, on ports of its own, and its admin side.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordgate::clock::Clock;
use ordgate::config::{Config, Problem};
use ordgate::serve::{LoadedConfig, Options, Server};
use ordgate::supervisor::{InheritedSockets, Supervisor};
use ordgate::upstream::client::resolver::Names;
use ordgate::upstream::keys::ApiKey;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::wire::{Answer, Wire, request};

/// How long the admin side may take, and a server to end. Far above what a busy
/// machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a gateway reads when it starts, and again when it reloads.
#[derive(Clone)]
pub(crate) struct Source {
    /// What would stand in proxy.toml.
    pub(crate) config: toml::Table,
    /// Keys, separated by commas.
    pub(crate) keys: String,
}

/// What reloads read: the test writes it.
pub(crate) type Shelf = Arc<Mutex<Source>>;

impl Source {
    fn fresh(&self) -> Result<LoadedConfig, Vec<String>> {
        let config = Config::parse("test.toml", &self.config.to_string());
        let said = |problems: Vec<Problem>| -> Vec<String> {
            problems.iter().map(ToString::to_string).collect()
        };
        Ok(LoadedConfig {
            config: config.map_err(said)?,
            keys: ApiKey::list(&self.keys)
                .map_err(|error| vec![error.to_string()])?
                .into(),
            admin_token: None,
        })
    }
}

/// A running gateway.
pub(crate) struct House {
    pub(crate) public: SocketAddr,
    pub(crate) admin: SocketAddr,
    server: Option<Server>,
}

impl House {
    /// Starts one that reads what is on the shelf.
    pub(crate) fn start(shelf: &Shelf) -> Self {
        let fresh = shelf.lock().unwrap().fresh();
        let fresh = fresh.unwrap_or_else(|problems| panic!("{problems:#?}"));
        let again = shelf.clone();
        let server = Server::start(Options {
            loaded: fresh,
            config_name: "test.toml".to_owned(),
            load: Box::new(move || again.lock().unwrap().fresh()),
            sandbox: None,
            sockets: InheritedSockets::default(),
            supervisor: Supervisor::default(),
            names: Names::default(),
            clock: Clock::machine(),
        });
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        Self {
            public: server.public(),
            admin: server.admin(),
            server: Some(server),
        }
    }

    /// The server itself.
    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Drains it and waits for its end, which must come.
    pub(crate) async fn end(mut self) {
        let server = self.server.take().unwrap();
        server.drain();
        let (tell, told) = oneshot::channel();
        // A thread of its own, which is gone with it; the runtime would keep one
        // for the next.
        let waiting = std::thread::spawn(move || {
            server.wait();
            let _ = tell.send(());
        });
        let ended = timeout(PATIENCE, told).await;
        assert!(matches!(ended, Ok(Ok(()))), "a drained server does not end");
        waiting.join().unwrap();
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.drain();
            server.wait();
        }
    }
}

/// A request to an admin side.
pub(crate) async fn admin(at: SocketAddr, method: &str, target: &str) -> Answer {
    let asked = async {
        let mut wire = Wire::connect(at, None).await.unwrap();
        wire.send(request(method, target, "")).await.unwrap();
        wire.answer(method).await.unwrap()
    };
    let answer = timeout(PATIENCE, asked).await;
    answer.unwrap_or_else(|_elapsed| panic!("the admin side hangs: {target}"))
}

/// What the admin side says of the whole.
pub(crate) async fn status(at: SocketAddr) -> Value {
    let answer = admin(at, "GET", "/status").await;
    assert_eq!(answer.status, 200);
    serde_json::from_slice(&answer.body).unwrap()
}

/// The shipped configuration, routes included, as a table to be changed.
pub(crate) fn shipped() -> toml::Table {
    include_str!("../../proxy.toml").parse().unwrap()
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
