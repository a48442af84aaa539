//! Real servers of the engine, and a small client that sees what the scripts have stored.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Polls until it is so.
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it does not happen within 30 s: {what}");
}

/// Whether tests with real servers can run here.
pub(crate) fn is_installed() -> bool {
    let found = Command::new("redis-server")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    let is_installed = found.is_ok_and(|status| status.success());
    if !is_installed {
        eprintln!("SKIPPED: redis-server is not installed");
        assert!(
            std::env::var_os("ORDGATE_CI").is_none(),
            "redis-server is needed with ORDGATE_CI=1"
        );
    }
    is_installed
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Text(String),
    Number(i64),
    List(Vec<Self>),
    Nothing,
    Error(String),
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        let Self::Text(text) = self else {
            panic!("not a text: {self:?}");
        };
        text
    }

    pub(crate) fn list(&self) -> &[Self] {
        let Self::List(list) = self else {
            panic!("not a list: {self:?}");
        };
        list
    }
}

pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn call(&mut self, arguments: &[&str]) -> Answer {
        let mut request = format!("*{}\r\n", arguments.len());
        for argument in arguments {
            request += &format!("${}\r\n{argument}\r\n", argument.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.read()
    }

    /// From now on [`read`](Self::read) returns what the server carries out, each command
    /// of a script included.
    pub(crate) fn monitor(mut self) -> Self {
        assert_eq!(self.call(&["MONITOR"]).text(), "OK");
        self
    }

    pub(crate) fn read(&mut self) -> Answer {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        let length = || rest.parse::<i64>().unwrap();
        match kind {
            "+" => Answer::Text(rest.to_owned()),
            "-" => Answer::Error(rest.to_owned()),
            ":" => Answer::Number(length()),
            "$" | "*" if length() < 0 => Answer::Nothing,
            "$" => {
                let mut text = vec![0; length() as usize + 2];
                self.0.read_exact(&mut text).unwrap();
                text.truncate(text.len() - 2);
                Answer::Text(String::from_utf8(text).unwrap())
            }
            "*" => Answer::List((0..length()).map(|_| self.read()).collect()),
            _ => panic!("not an answer: {line:?}"),
        }
    }
}

/// A server of its own, which ends when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    bus: u16,
    directory: TempDir,
    options: Vec<String>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with more options.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        // Another process may take a port that was free a moment ago.
        for _ in 0..20 {
            let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
            let [port, bus] = free.map(|free| free.local_addr().unwrap().port());
            let directory = tempfile::tempdir().unwrap();
            let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
            let mut server = Self {
                process: spawn(port, bus, directory.path().to_str().unwrap(), &options),
                port,
                bus,
                directory,
                options,
            };
            if server.answers() {
                return server;
            }
        }
        panic!("no server starts");
    }

    /// Whether it answers soon, and does not end instead.
    fn answers(&mut self) -> bool {
        for _ in 0..1500 {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The path of its directory.
    pub(crate) fn directory(&self) -> &str {
        self.directory.path().to_str().unwrap()
    }

    pub(crate) fn connection(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        let limit = Some(Duration::from_secs(30));
        stream.set_read_timeout(limit).unwrap();
        Connection(BufReader::new(stream))
    }

    pub(crate) fn call(&self, arguments: &[&str]) -> Answer {
        self.connection().call(arguments)
    }

    /// One field of `INFO`.
    pub(crate) fn info(&self, field: &str) -> String {
        let info = self.call(&["INFO"]);
        let line = info.text().lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == field).then_some(value)
        });
        line.unwrap_or_default().trim().to_owned()
    }

    /// Ends the server at once. It keeps what it has saved.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again on the same port, with what it has saved.
    pub(crate) fn start_again(&mut self) {
        let directory = self.directory.path().to_str().unwrap();
        self.process = spawn(self.port, self.bus, directory, &self.options);
        assert!(self.answers(), "the server starts again");
        wait_for("the dump is loaded", || self.info("loading") == "0");
    }

    /// Stops the process until it is [continued](Self::proceed).
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn proceed(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Makes it a copy of another server, and waits until it has all.
    pub(crate) fn follow(&self, primary: &Self) {
        self.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        wait_for("the copy follows", || {
            self.info("master_link_status") == "up"
                && primary.info("slave0").contains("state=online")
        });
    }

    /// Makes it a primary.
    pub(crate) fn promote(&self) {
        self.call(&["REPLICAOF", "NO", "ONE"]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(port: u16, bus: u16, directory: &str, options: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--cluster-port", &bus.to_string(), "--save", ""]);
    command.args(["--repl-diskless-sync-delay", "0", "--dir", directory]);
    command.args(options);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// Three primaries with a copy each.
pub(crate) struct Cluster {
    /// The primaries, then their copies in the same order.
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let servers: Vec<_> = (0..6).map(|_| Server::start_with(&options)).collect();
        let slots = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
        for (server, (first, last)) in servers.iter().zip(slots) {
            server.call(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        }
        for (epoch, server) in servers.iter().enumerate() {
            server.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(epoch + 1).to_string()]);
        }
        for other in &servers[1..] {
            let (port, bus) = (other.port.to_string(), other.bus.to_string());
            servers[0].call(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let cluster = Self { servers };
        cluster.wait_until("all know each other", |server| {
            knows(server, "cluster_known_nodes:6")
        });
        for (primary, copy) in (0..3).zip(3..6) {
            let id = cluster.servers[primary].call(&["CLUSTER", "MYID"]);
            let copy = &cluster.servers[copy];
            wait_for("the copy knows its primary", || {
                copy.call(&["CLUSTER", "REPLICATE", id.text()]) == Answer::Text("OK".into())
            });
        }
        cluster.wait_until("all slots are served", |server| {
            knows(server, "cluster_state:ok") && knows(server, "cluster_slots_ok:16384")
        });
        for primary in &cluster.servers[..3] {
            wait_for("each primary has its copy", || {
                primary.info("slave0").contains("state=online")
            });
        }
        cluster
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Server) -> bool) {
        for server in &self.servers {
            wait_for(what, || is_so(server));
        }
    }

    /// The URLs of the first two servers.
    pub(crate) fn url(&self) -> String {
        format!("{},{}", self.servers[0].url(), self.servers[1].url())
    }
}

fn knows(server: &Server, line: &str) -> bool {
    let info = server.call(&["CLUSTER", "INFO"]);
    info.text().lines().any(|found| found == line)
}
