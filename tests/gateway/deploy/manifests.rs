//! The files for Docker Compose and for Kubernetes: the configurations in them are valid,
//! HAProxy and Valkey accept theirs, and the numbers and names in them agree.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use regex_lite::Regex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{checked_with, example};
use crate::support::{Client, Process, Upstream, until, within};

const COMPOSE: &str = include_str!("../../../deploy/compose/compose.yaml");
const COMPOSE_TOML: &str = include_str!("../../../deploy/compose/ordgate.toml");
const HAPROXY: &str = include_str!("../../../deploy/compose/haproxy.cfg");
const VALKEY: &str = include_str!("../../../deploy/compose/valkey.conf");
const SETUP: &str = include_str!("../../../deploy/compose/setup");

const KUBERNETES: &str = include_str!("../../../deploy/kubernetes/ordgate.yaml");
const KUBERNETES_CONFIG: &str = include_str!("../../../deploy/kubernetes/config.yaml");
const KUBERNETES_SECRET: &str = include_str!("../../../deploy/kubernetes/secret.yaml.example");
const KUBERNETES_VALKEY: &str = include_str!("../../../deploy/kubernetes/valkey.yaml");

/// Where ordgate reads its environment.
const READERS: [&str; 2] = [
    include_str!("../../../src/cli/environment.rs"),
    include_str!("../../../src/telemetry.rs"),
];

/// Variables of compose.yaml itself, which containers do not get.
const OF_COMPOSE: [&str; 2] = ["ORDGATE_IMAGE", "ORDGATE_USER"];

/// What a pattern with one group finds.
fn found<'t>(pattern: &str, text: &'t str) -> Vec<&'t str> {
    let pattern = Regex::new(pattern).unwrap();
    let found = pattern.captures_iter(text);
    found.map(|found| found.get(1).unwrap().as_str()).collect()
}

/// The only thing that a pattern finds, as a number.
fn number(pattern: &str, text: &str) -> usize {
    let found = found(pattern, text);
    let [number] = found[..] else {
        panic!("{pattern}: {found:?}");
    };
    number.parse().unwrap()
}

/// A text of several lines (`key: |`) in a ConfigMap or a Secret, with `CHANGE-ME` replaced.
fn text_of(key: &str, yaml: &str) -> String {
    let (_, rest) = yaml.split_once(&format!("\n  {key}: |\n")).unwrap();
    let lines = rest
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    let lines: Vec<_> = lines
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect();
    lines.join("\n").replace("CHANGE-ME", "changed") + "\n"
}

/// Whether a tool is installed. In CI it must be.
fn has(tool: &str) -> bool {
    let started = Command::new(tool)
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if started.is_err() {
        assert!(std::env::var_os("ORDGATE_CI").is_none(), "CI has {tool}");
        eprintln!("NOT RUN: there is no {tool}");
    }
    started.is_ok()
}

/// A file that only its owner may read.
fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

/// A server with the configuration of Valkey; it is killed when it is dropped.
struct Valkey {
    server: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl Drop for Valkey {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Valkey {
    /// Starts it with this configuration, which names the file of its users.
    async fn start(config: &str, users_path: &str, users: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert_eq!(config.matches(users_path).count(), 1, "{config}");
        let own = path("users").display().to_string();
        fs::write(path("config"), config.replace(users_path, &own)).unwrap();
        write_secret(&path("users"), users);
        // On an address of its own: no other test can take the port meanwhile.
        let free = TcpListener::bind("127.0.0.78:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let server = Command::new("redis-server")
            .arg(path("config"))
            .args(["--bind", "127.0.0.78"])
            .args(["--port", &address.port().to_string()])
            .arg("--dir")
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let valkey = Self {
            server: server.unwrap(),
            address,
            _directory: directory,
        };
        until("the server listens", || TcpStream::connect(address).is_ok()).await;
        valkey
    }

    /// Nobody can do anything without the password.
    fn refuses_others(&self) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"-NOAUTH");
    }
}

/// Checks a configuration and starts it with these variables. Returns what `/status` has
/// under `shared` when the engine has answered.
async fn started(
    toml: &str,
    engine_url: &str,
    paths: &[(&str, &str)],
    variables: &[(&str, &str)],
) -> Value {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let own = |name: &str| directory.path().join(name).display().to_string();
    write_secret(&directory.path().join("api-keys"), "the-key\n");
    write_secret(&directory.path().join("admin-token"), "the-token\n");
    write_secret(&directory.path().join("engine-url"), engine_url);
    let mut replaced = vec![("https://api.example", upstream.url())];
    replaced.extend(paths.iter().map(|(written, name)| (*written, own(name))));
    let file = example(toml, &replaced);
    let file = file.path().display().to_string();
    let printed = checked_with(&file, variables);
    assert!(printed.contains("\n[shared]\n"), "{printed}");
    let (_process, _, admin) = Process::serve(&["--config", &file], variables);
    let mut client = Client::connect(admin).await;
    // What probes ask for needs no token; all else does.
    assert_eq!(client.get("/healthz").await.status, 200);
    assert_eq!(client.get("/readyz").await.status, 503);
    assert_eq!(client.get("/status").await.status, 401);
    let token = [("authorization", "Bearer the-token")];
    within("the engine answers", async {
        loop {
            let status = client.request("GET", "/status", &token).await.json();
            let shared = &status["shared"];
            let refused = &shared["engine"]["last_error"];
            assert!(!refused.to_string().contains("refuses"), "{shared}");
            if shared["engine"]["is_up"] == true {
                return shared.clone();
            }
        }
    })
    .await
}

#[test]
fn each_variable_is_one_that_ordgate_knows() {
    let known = READERS.map(|text| found(r#""(ORDGATE_[A-Z_]+)""#, text));
    let known: BTreeSet<&str> = known.into_iter().flatten().collect();
    assert!(known.contains("ORDGATE_LOG"), "{known:?}");
    let compose = [COMPOSE, COMPOSE_TOML, HAPROXY, VALKEY, SETUP];
    let kubernetes = [
        KUBERNETES,
        KUBERNETES_CONFIG,
        KUBERNETES_SECRET,
        KUBERNETES_VALKEY,
    ];
    for (files, own) in [
        (&compose[..], &OF_COMPOSE[..]),
        (&kubernetes[..], &OF_COMPOSE[..0]),
    ] {
        let named = files
            .iter()
            .flat_map(|text| found(r"(ORDGATE_[A-Z_]+)", text));
        let named: BTreeSet<&str> = named.collect();
        assert!(named.contains("ORDGATE_SHARED_REPLICAS"), "{named:?}");
        for name in named {
            assert!(known.contains(name) || own.contains(&name), "{name}");
        }
    }
    for name in OF_COMPOSE {
        assert!(COMPOSE.contains(&format!("${{{name}:?")), "{name}");
        assert!(SETUP.contains(&format!("\n{name}=")), "{name}");
    }
}

#[test]
fn no_more_replicas_run_than_share_the_budget() {
    let told = number(r#"ORDGATE_SHARED_REPLICAS: "([0-9]+)""#, COMPOSE);
    let names = found(r"\n  (ordgate-[0-9]+):\n    <<: \*ordgate\n", COMPOSE);
    assert_eq!(names.len(), told, "{names:?}");
    // Each has a state directory of its own, and gets requests.
    let servers = found(r"\n    server (ordgate-[0-9]+) ", HAPROXY);
    assert_eq!(servers, names);
    let directories: BTreeSet<_> = found(r"source: \./(state/[0-9]+),", COMPOSE)
        .into_iter()
        .collect();
    assert_eq!(directories.len(), names.len());
    assert!(directories.iter().all(|made| SETUP.contains(made)));

    // A pod more than `replicas` may run on a node that cannot be reached.
    let told = number(r#"ORDGATE_SHARED_REPLICAS, value: "([0-9]+)""#, KUBERNETES);
    let replicas = number(r"\n  replicas: ([0-9]+)\n", KUBERNETES);
    assert!(replicas < told, "{replicas} {told}");
}

#[test]
fn replicas_have_time_to_drain() {
    let of_pods = text_of("proxy.toml", KUBERNETES_CONFIG);
    let graces = found(r"stop_grace_period: ([0-9]+)s", COMPOSE);
    let [of_replica, _of_haproxy] = graces[..] else {
        panic!("{graces:?}");
    };
    let of_pod = number(r"terminationGracePeriodSeconds: ([0-9]+)", KUBERNETES);
    for (toml, grace) in [
        (COMPOSE_TOML, of_replica.parse().unwrap()),
        (&*of_pods, of_pod),
    ] {
        let delay = number(r#"drain_delay = "([0-9]+)s""#, toml);
        let timeout = number(r#"drain_timeout = "([0-9]+)s""#, toml);
        assert!(delay + timeout < grace, "{delay} {timeout} {grace}");
    }
}

#[test]
fn haproxy_accepts_its_configuration() {
    if !has("haproxy") {
        return;
    }
    // Docker's DNS is not here.
    let names = Regex::new(r" ordgate-[0-9]+:8080\n").unwrap();
    let config = names.replace_all(HAPROXY, " 127.0.0.1:8080\n");
    assert_ne!(config, HAPROXY);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(config.as_bytes()).unwrap();
    let checked = Command::new("haproxy")
        .args(["-c", "-f"])
        .arg(file.path())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{printed}");
    assert!(!printed.contains("WARNING"), "{printed}");
    // ordgate believes the address that HAProxy has there.
    let address = found(r"ipv4_address: ([0-9.]+)\n", COMPOSE);
    let trusted = found(r#"\ntrusted_proxies = \["([0-9.]+)"\]"#, COMPOSE_TOML);
    assert_eq!(address, trusted);
    assert_eq!(trusted.len(), 1);
}

/// Runs `setup` in a directory of its own.
fn set_up() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("setup");
    fs::write(&script, SETUP).unwrap();
    let run = || {
        let ran = Command::new("sh").arg(&script).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    assert!(run().contains("keys into secrets/api-keys"));
    let secrets = ["api-keys", "admin-token", "engine-url", "valkey-users"];
    let secrets = secrets.map(|name| directory.path().join("secrets").join(name));
    let texts = || {
        secrets
            .each_ref()
            .map(|path| fs::read_to_string(path).unwrap())
    };
    for path in &secrets {
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    // It changes nothing that exists.
    let before = texts();
    fs::write(&secrets[0], "the-key\n").unwrap();
    assert_eq!(run(), "");
    assert_eq!(before[1..], texts()[1..]);
    directory
}

#[tokio::test]
async fn replicas_of_compose_share_a_budget() {
    let made = set_up();
    if !has("redis-server") {
        return;
    }
    let secret = |name: &str| fs::read_to_string(made.path().join("secrets").join(name)).unwrap();
    let valkey = Valkey::start(VALKEY, "/run/secrets/valkey-users", &secret("valkey-users")).await;
    valkey.refuses_others();
    let url = secret("engine-url");
    assert!(url.ends_with("@valkey:6379\n"));
    let url = url.replace("@valkey:6379", &format!("@{}", valkey.address));
    let paths = [
        ("/run/secrets/api-keys", "api-keys"),
        ("/run/secrets/admin-token", "admin-token"),
        ("/run/secrets/engine-url", "engine-url"),
        ("/var/lib/ordgate", "state"),
    ];
    let variables = [("ORDGATE_SHARED_REPLICAS", "3")];
    let shared = started(COMPOSE_TOML, &url, &paths, &variables).await;
    assert_eq!(shared["replicas"], 3, "{shared}");
}

#[tokio::test]
async fn pods_of_kubernetes_share_a_budget() {
    let toml = text_of("proxy.toml", KUBERNETES_CONFIG);
    if !has("redis-server") {
        return;
    }
    let users = text_of("users.acl", KUBERNETES_SECRET);
    let config = text_of("valkey.conf", KUBERNETES_VALKEY);
    let valkey = Valkey::start(&config, "/run/secrets/valkey/users.acl", &users).await;
    valkey.refuses_others();
    let url = found(r"\n  url: ([^\n]+)\n", KUBERNETES_SECRET)[0].replace("CHANGE-ME", "changed");
    let url = url.replace("@ordgate-valkey:6379", &format!("@{}", valkey.address));
    let paths = [
        ("/run/secrets/ordgate/api-keys", "api-keys"),
        ("/run/secrets/ordgate/admin-token", "admin-token"),
        ("/run/secrets/ordgate/engine-url", "engine-url"),
        ("/var/lib/ordgate/state", "state"),
    ];
    let variables = [("ORDGATE_SHARED_REPLICAS", "4")];
    let shared = started(&toml, &url, &paths, &variables).await;
    assert_eq!(shared["replicas"], 4, "{shared}");
}
