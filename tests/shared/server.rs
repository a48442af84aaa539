//! A real server of the engine, and a small client that sees what the scripts have stored.

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

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn call(&mut self, arguments: &[&str]) -> Answer {
        let mut request = format!("*{}\r\n", arguments.len());
        for argument in arguments {
            request += &format!("${}\r\n{argument}\r\n", argument.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.read()
    }

    fn read(&mut self) -> Answer {
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
                Answer::Text(String::from_utf8_lossy(&text).into_owned())
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
    directory: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        // Another process may take a port that was free a moment ago.
        for _ in 0..20 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let directory = tempfile::tempdir().unwrap();
            let process = spawn(port, directory.path().to_str().unwrap());
            let mut server = Self { process, port, directory };
            if server.answers() {
                return server;
            }
        }
        panic!("no server starts: is redis-server or valkey-server installed?");
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

    pub(crate) fn call(&self, arguments: &[&str]) -> Answer {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Connection(BufReader::new(stream)).call(arguments)
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
        self.process = spawn(self.port, self.directory.path().to_str().unwrap());
        assert!(self.answers(), "the server starts again");
        wait_for("the dump is loaded", || self.info("loading") == "0");
    }

    /// Stops the process until it [proceeds](Self::proceed).
    pub(crate) fn stop(&self) {
        kill_process(Pid::from_child(&self.process), Signal::STOP).unwrap();
    }

    pub(crate) fn proceed(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).unwrap();
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

    /// Opens a pool that is closed, by its life's score, which it waits for.
    pub(crate) fn open_pool(&self, key: &str) {
        wait_for("there is a life", || {
            let members = self.call(&["ZRANGE", key, "0", "0"]);
            let Some(life) = members.list().first() else {
                return false;
            };
            self.call(&["ZADD", key, "1", life.text()]);
            true
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(port: u16, directory: &str) -> Child {
    let arguments = |command: &mut Command| {
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--repl-diskless-sync-delay", "0", "--dir", directory]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn()
    };
    let found = arguments(&mut Command::new("redis-server"));
    let found = found.or_else(|_| arguments(&mut Command::new("valkey-server")));
    found.expect("redis-server or valkey-server is installed")
}
