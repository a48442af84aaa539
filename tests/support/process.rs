//! The binary as a process: start, output and end.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, PipeWriter, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, Upstream};

const BINARY: &str = env!("CARGO_BIN_EXE_ordgate");

/// A level for `ORDGATE_LOG`: all messages, also those of the libraries.
pub(crate) const LOG_ALL: &str = "trace,h2=trace,hyper=trace,hyper_util=trace,mio=trace,moka=trace,redis=trace,rustls=trace,tokio=trace,tokio_rustls=trace";

/// A running binary; it is killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    out: Arc<Mutex<String>>,
    errors: Arc<Mutex<String>>,
    lines: Receiver<String>,
    ended: Receiver<()>,
}

/// What a binary left behind.
pub(crate) struct Left {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Left {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Checks that it has printed this.
    pub(crate) fn printed(&self, part: &str) {
        assert!(self.out.contains(part), "no {part:?} in {}", self.out);
    }
}

impl Process {
    /// Starts the binary with these arguments and, of its own variables, with
    /// these alone.
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| (*name, OsStr::new(*value)))
            .collect();
        Self::start_with(arguments, &variables)
    }

    /// The same, where a variable need not be text.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &OsStr)]) -> Self {
        let mut command = Command::new(BINARY);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command.args(arguments);
        Self::spawn(command, variables)
    }

    /// Starts the binary as a supervisor does that hands over one socket or two,
    /// with their names, if they have any. Of two, the second takes the place of
    /// standard error, which comes with standard output then.
    pub(crate) fn start_handed(
        sockets: Vec<OwnedFd>,
        names: Option<&str>,
        arguments: &[&str],
    ) -> Self {
        let script = match sockets.len() {
            1 => "exec 3<&0 0</dev/null; export LISTEN_FDS=1",
            _ => "exec 3<&0 4<&2 0</dev/null 2>&1; export LISTEN_FDS=2",
        };
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{script} LISTEN_PID=$$; exec \"$0\" \"$@\"")])
            .arg(BINARY)
            .args(arguments);
        let mut sockets = sockets.into_iter();
        command.stdin(sockets.next().unwrap());
        command.stderr(sockets.next().map_or_else(Stdio::piped, Stdio::from));
        let names = names.map(|names| ("LISTEN_FDNAMES", OsStr::new(names)));
        Self::spawn(command, names.as_slice())
    }

    /// Starts the binary where a file can have so many blocks of 512 bytes: writes fail
    /// halfway, as on a full disk.
    pub(crate) fn start_on_full_disk(blocks: u32, arguments: &[&str]) -> Self {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(BINARY).args(arguments);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        Self::spawn(command, &[])
    }

    /// Starts the binary with this pipe as its standard error.
    pub(crate) fn start_writing_to(errors: PipeWriter, arguments: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(arguments);
        command.stdin(Stdio::null()).stderr(errors);
        Self::spawn(command, &[])
    }

    fn spawn(mut command: Command, variables: &[(&str, &OsStr)]) -> Self {
        for name in [
            "STATE_DIRECTORY",
            "NOTIFY_SOCKET",
            "WATCHDOG_USEC",
            "WATCHDOG_PID",
            "LISTEN_FDS",
            "LISTEN_PID",
            "LISTEN_FDNAMES",
        ] {
            command.env_remove(name);
        }
        // ordgate's own, some of which it warns of, and those of OpenTelemetry, with which
        // it would export traces.
        for (name, _) in std::env::vars_os() {
            let name_bytes = name.as_encoded_bytes();
            if name_bytes.starts_with(b"ORDGATE_") || name_bytes.starts_with(b"OTEL_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Its own ends of what it was given go with it.
        drop(command);
        let (say, lines) = channel();
        let (end, ended) = channel();
        let out = Arc::new(Mutex::new(String::new()));
        let errors = Arc::new(Mutex::new(String::new()));
        let pipe = child.stdout.take().unwrap();
        let (keep, over) = (out.clone(), end.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines() {
                let line = line.unwrap();
                keep.lock().unwrap().push_str(&format!("{line}\n"));
                // A test that has what it wants listens no longer.
                let _ = say.send(line);
            }
            let _ = over.send(());
        });
        let pipe = child.stderr.take();
        let keep = errors.clone();
        std::thread::spawn(move || {
            let mut room = [0; 4096];
            if let Some(mut pipe) = pipe {
                while let Ok(length @ 1..) = pipe.read(&mut room) {
                    let text = String::from_utf8_lossy(&room[..length]);
                    keep.lock().unwrap().push_str(&text);
                }
            }
            let _ = end.send(());
        });
        Self {
            child,
            out,
            errors,
            lines,
            ended,
        }
    }

    /// Runs the binary to its end.
    pub(crate) fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Left {
        Self::start(arguments, variables).wait()
    }

    /// Starts `serve` on free ports, and waits for its ready line: where it
    /// serves clients, and where the operator.
    pub(crate) fn serve(
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> (Self, SocketAddr, SocketAddr) {
        let ports = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let process = Self::start(&[&ports, arguments].concat(), variables);
        let (public, admin) = process.ready();
        (process, public, admin)
    }

    /// The same before this upstream.
    pub(crate) fn before(
        upstream: &Upstream,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> (Self, SocketAddr, SocketAddr) {
        let flags = upstream.flags();
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        Self::serve(&[arguments, &flags].concat(), variables)
    }

    /// Waits for the ready line: where it serves clients, and where the operator.
    pub(crate) fn ready(&self) -> (SocketAddr, SocketAddr) {
        loop {
            let line = self.line();
            // What it logs comes before where both are one.
            let line = line.replace("ordgate is listening on", "ordgate is ready on");
            let Some(rest) = line.strip_prefix("ordgate is ready on http://") else {
                continue;
            };
            let addresses = rest
                .split_once(')')
                .and_then(|(rest, _)| rest.split_once(" (admin on http://"));
            let (public, admin) = addresses.unwrap_or_else(|| panic!("{line}"));
            return (public.parse().unwrap(), admin.parse().unwrap());
        }
    }

    /// The next line of standard output.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(error) => panic!("no line ({error}); its errors: {}", self.errors()),
        }
    }

    /// What it has written to standard error so far.
    pub(crate) fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    /// The most memory that it has held so far, in bytes.
    pub(crate) fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap() * 1024
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Left {
        for _ in 0..2 {
            let ended = self.ended.recv_timeout(PATIENCE);
            assert!(ended.is_ok(), "does not end: {}", self.errors());
        }
        Left {
            status: self.child.wait().unwrap(),
            out: self.out.lock().unwrap().clone(),
            errors: self.errors(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
