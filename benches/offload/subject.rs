//! Subjects: what stands between the clients and the sandbox, as a process of
//! its own, with a configuration made for the run in a directory of its own.
//!
//! Invariant: what was started is stopped, by its process id, when the subject
//! is dropped.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;

use crate::ordgate_config;

/// How often ordgate asks for the tip, and how long nginx keeps an answer where
/// it is told to: what makes both as fresh.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    Ordgate,
    NginxObey,
    NginxFixed,
    None,
}

impl Name {
    /// What is measured unless someone chooses.
    pub(crate) const ALL: [Self; 3] = [Self::NginxObey, Self::NginxFixed, Self::Ordgate];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Ordgate => "ordgate",
            Self::NginxObey => "nginx, headers obeyed",
            Self::NginxFixed => "nginx, fixed 1 s",
            Self::None => "no cache",
        }
    }

    /// How old an answer may be: one second beyond [`FRESH`], for a tip that is
    /// asked for may take its time, and nginx counts in whole seconds.
    pub(crate) fn bound(self) -> Duration {
        match self {
            Self::Ordgate | Self::NginxFixed => FRESH + Duration::from_secs(1),
            Self::NginxObey | Self::None => Duration::ZERO,
        }
    }
}

/// A subject that runs.
pub(crate) struct Subject {
    pub(crate) address: SocketAddr,
    child: Option<Child>,
    /// What it says is read no further, but someone must hold the other end.
    _stdout: Option<BufReader<ChildStdout>>,
    _directory: Option<TempDir>,
}

impl Subject {
    /// Starts one before the upstream; nothing where it is not installed.
    /// `has_rest` is whether it passes on the rest of the API.
    pub(crate) fn start(name: Name, upstream: SocketAddr, has_rest: bool) -> Result<Option<Self>> {
        match name {
            Name::Ordgate => {
                let config = ordgate_config::text(upstream, Some(FRESH), None)?;
                let api = if has_rest { "api = \"all\"\n" } else { "" };
                Self::ordgate(&format!("{api}{config}")).map(Some)
            }
            Name::NginxObey => Self::nginx(upstream, ""),
            Name::NginxFixed => Self::nginx(upstream, &fixed()),
            Name::None => Ok(Some(Self {
                address: upstream,
                child: None,
                _stdout: None,
                _directory: None,
            })),
        }
    }

    /// The binary, with this configuration.
    pub(crate) fn ordgate(config: &str) -> Result<Self> {
        let directory = TempDir::with_prefix("offload-")?;
        let file = directory.path().join("proxy.toml");
        fs::write(&file, config)?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_ordgate"))
            .args(["serve", "--config"])
            .arg(&file)
            .env_remove("ORDGATE_API_KEYS")
            .env_remove("ORDGATE_ADMIN_TOKEN")
            .stdout(Stdio::piped())
            .spawn()
            .context("ordgate does not start")?;
        let stdout = child.stdout.take().context("no standard output")?;
        // From here on the child is stopped, whatever happens.
        let mut subject = Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            child: Some(child),
            _stdout: None,
            _directory: Some(directory),
        };
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let address = line
            .split_once("http://")
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        subject.address = address.ok_or_else(|| anyhow!("ordgate is not ready: {line:?}"))?;
        subject._stdout = Some(stdout);
        Ok(subject)
    }

    /// Ends it at once: kill -9.
    pub(crate) fn kill(mut self) -> Result<()> {
        let child = self.child.as_mut().context("nothing was started")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    fn nginx(upstream: SocketAddr, cache: &str) -> Result<Option<Self>> {
        // The port may be taken between its being found and nginx's binding it.
        for _ in 0..3 {
            let directory = TempDir::with_prefix("offload-")?;
            let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
            let config = nginx_config(directory.path(), address, upstream, cache);
            let file = directory.path().join("nginx.conf");
            fs::write(&file, config)?;
            let spawned = Command::new("nginx")
                .args(["-e", "stderr", "-p"])
                .arg(directory.path())
                .arg("-c")
                .arg(&file)
                .stdout(Stdio::null())
                .spawn();
            let child = match spawned {
                Ok(child) => child,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error).context("nginx does not start"),
            };
            let mut subject = Self {
                address,
                child: Some(child),
                _stdout: None,
                _directory: Some(directory),
            };
            if subject.listens()? {
                return Ok(Some(subject));
            }
        }
        bail!("nginx does not listen")
    }

    /// Waits until it takes connections; false where it has ended instead.
    fn listens(&mut self) -> Result<bool> {
        for _ in 0..250 {
            if let Some(child) = &mut self.child
                && child.try_wait()?.is_some()
            {
                return Ok(false);
            }
            if TcpStream::connect(self.address).is_ok() {
                return Ok(true);
            }
            sleep(Duration::from_millis(20));
        }
        Ok(false)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else {
            return;
        };
        // Asked first: nginx has workers, which only it can end.
        let asked = kill_process(Pid::from_child(child), Signal::TERM);
        for _ in 0..250 {
            if asked.is_err() || matches!(child.try_wait(), Ok(Some(_))) {
                break;
            }
            sleep(Duration::from_millis(20));
        }
        // Where it is gone already, both have nothing to do.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// nginx's cache with a time of our own, whatever the upstream's fields say.
fn fixed() -> String {
    let seconds = FRESH.as_secs();
    format!(
        "proxy_ignore_headers Cache-Control Expires Vary;
            proxy_cache_valid 200 {seconds}s;
            proxy_cache_valid 404 1s;"
    )
}

/// Where the fields are obeyed, `no-cache` forbids nginx to store anything. It
/// does not revalidate: the upstream's tags are of the tip, and a token whose
/// tag is the same may be another.
fn nginx_config(directory: &Path, listen: SocketAddr, upstream: SocketAddr, cache: &str) -> String {
    let directory = directory.display();
    // Its worker must get into the directory, which is ours alone.
    let user = if getuid().is_root() { "user root;" } else { "" };
    format!(
        "daemon off;
{user}
worker_processes 1;
pid {directory}/nginx.pid;
error_log stderr crit;
events {{
    worker_connections 4096;
}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    proxy_cache_path {directory}/cache levels=1:2 keys_zone=api:64m max_size=4g inactive=1h use_temp_path=off;
    keepalive_requests 1000000;
    upstream api {{
        server {upstream};
        keepalive 64;
        keepalive_requests 1000000;
    }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://api;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_cache api;
            proxy_cache_lock on;
            {cache}
        }}
    }}
}}
"
    )
}
