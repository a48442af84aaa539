//! A real server of the engine, and what the scripts have stored there.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::FromRedisValue;
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
            let mut server = Self {
                process: spawn(port, &directory),
                port,
                directory,
            };
            if server.answers() {
                return server;
            }
        }
        panic!("no server starts: is redis-server or valkey-server installed?");
    }

    /// Whether it answers soon, and does not end instead.
    fn answers(&mut self) -> bool {
        let mut is_up = false;
        wait_for("it answers or ends", || {
            is_up = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            is_up || self.process.try_wait().unwrap().is_some()
        });
        is_up
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn call<T: FromRedisValue>(&self, command: &[&str]) -> T {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let (name, arguments) = command.split_first().unwrap();
        redis::cmd(name)
            .arg(arguments)
            .query(&mut connection)
            .unwrap()
    }

    /// One field of `INFO`.
    fn info(&self, field: &str) -> String {
        let info: redis::InfoDict = self.call(&["INFO"]);
        info.get(field).unwrap_or_default()
    }

    /// Ends the server at once. It keeps what it has saved.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again on the same port, with what it has saved.
    pub(crate) fn start_again(&mut self) {
        self.process = spawn(self.port, &self.directory);
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
        self.call::<()>(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        wait_for("the copy follows", || {
            self.info("master_link_status") == "up"
                && primary.info("slave0").contains("state=online")
        });
    }

    /// Makes it a primary.
    pub(crate) fn promote(&self) {
        self.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    }

    /// Opens a pool that is closed, by its life's score, which it waits for.
    pub(crate) fn open_pool(&self, key: &str) {
        let life = || self.call::<Vec<String>>(&["ZRANGE", key, "0", "0"]).pop();
        wait_for("there is a life", || life().is_some());
        self.call::<()>(&["ZADD", key, "1", &life().unwrap()]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(port: u16, directory: &TempDir) -> Child {
    let options = format!("--port {port} --bind 127.0.0.1 --save  --repl-diskless-sync-delay 0");
    let start = |program| {
        let mut command = Command::new(program);
        command.args(options.split(' ')).current_dir(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).spawn()
    };
    let found = start("redis-server").or_else(|_| start("valkey-server"));
    found.expect("redis-server or valkey-server is installed")
}
