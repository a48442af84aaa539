//! A gateway seen from outside: its admin listener, and its sockets as Linux shows
//! them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use ordgate::config::Config;
use ordgate::shared::EngineUrl;
use serde::Deserialize;
use serde_json::Value;

use super::{Gateway, Setup};
use crate::support::{Client, PATIENCE, until};

/// A tip of the chain in `/status`.
#[derive(Debug, Deserialize)]
pub(crate) struct Tip {
    pub(crate) known: bool,
    pub(crate) height: Option<u32>,
    pub(crate) epoch: u64,
    pub(crate) probes: u64,
    pub(crate) failures: u64,
    pub(crate) reorgs: u64,
    pub(crate) moved_seconds_ago: Option<f64>,
    pub(crate) last_reorg: Option<Value>,
    pub(crate) trouble: Option<String>,
}

/// Reads a configuration, for replicas with this engine if it is not empty.
pub(super) fn parse(config: &str, engine: &str) -> Result<Config, Vec<String>> {
    let mut config = Config::parse("test.toml", config)?;
    if !engine.is_empty() {
        config.file.shared.as_mut().unwrap().engine = Some(EngineUrl::parse(engine).unwrap());
    }
    Ok(config)
}

impl Setup {
    /// With this engine, which replicas share.
    pub(crate) fn engine(self, url: &str) -> Self {
        url.clone_into(&mut self.source.lock().unwrap().engine);
        self
    }
}

impl Gateway {
    /// `/status`. It blocks, so that conditions to be polled may use it: the
    /// gateway has threads of its own.
    pub(crate) fn status(&self) -> Value {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = "GET /status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// A number in `/status`, by its JSON pointer.
    pub(crate) fn figure(&self, pointer: &str) -> u64 {
        let status = self.status();
        let value = status.pointer(pointer).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("no {pointer}: {status}"))
    }

    /// Connections of clients that are open.
    pub(crate) fn connections(&self) -> u64 {
        self.figure("/connections/open")
    }

    /// Requests under way to the first upstream.
    pub(crate) fn in_flight(&self) -> u64 {
        self.figure("/upstream/in_flight")
    }

    /// Requests in the admission queue of the first upstream.
    pub(crate) fn queued(&self) -> usize {
        usize::try_from(self.figure("/upstream/queue")).unwrap()
    }

    /// The number of keys that are being fetched for clients.
    pub(crate) fn fetching(&self) -> u64 {
        self.figure("/collapse/keys")
    }

    /// How many requests to all upstreams had a result, such as `failed`.
    pub(crate) fn of_upstreams(&self, result: &str) -> u64 {
        let status = self.status();
        let upstreams = status["upstreams"].as_object().unwrap().values();
        upstreams
            .map(|one| one["results"][result].as_u64().unwrap())
            .sum()
    }

    /// The tips of the chain.
    pub(crate) fn tips(&self) -> Vec<Tip> {
        serde_json::from_value(self.status()["chain"]["tips"].take()).unwrap()
    }

    /// Waits until all tips are known.
    pub(crate) async fn until_tips_are_known(&self) {
        until("the tips are known", || {
            self.tips().iter().all(|tip| tip.known)
        })
        .await;
    }

    /// Stored responses, after the store has settled what it took in.
    pub(crate) fn entries(&self) -> u64 {
        self.server().first.maintain();
        self.figure("/cache/entries")
    }

    /// Waits until the gateway has read all that clients have sent, so that their
    /// requests wait for the upstream, or for each other.
    pub(crate) async fn until_all_is_read(&self) {
        // Such as `0100007F:1F90`, as proc_pid_net(5) has it.
        assert_eq!(self.public.ip(), Ipv4Addr::LOCALHOST);
        let local = format!("0100007F:{:04X}", self.public.port());
        until("all is read", || {
            let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let mut rows = sockets.lines().map(|row| row.split_whitespace().skip(1));
            rows.all(|mut row| {
                let (own, queues) = (row.next(), row.nth(2));
                // A listener's queue holds connections.
                let unread = queues.is_some_and(|queues| !queues.ends_with(":00000000"));
                !unread || own != Some(&local)
            })
        })
        .await;
        // A worker that has read a request handles it before it reads another.
        let mut client = Client::connect(self.public).await;
        client.send("GET / HTTP/1.1\r\n\r\n").await;
        assert_eq!(client.answer("GET").await.status, 400);
    }
}
