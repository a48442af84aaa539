//! The files in deploy/: dashboards and alerts use only metrics that ordgate
//! has, and each example configuration serves what it describes.

mod promtool;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use ordgate::cache::outcome::OUTCOMES;
use ordgate::sandbox::{Api, Sandbox, Settings};
use regex_lite::{Captures, Regex};
use serde_json::Value;

use crate::support::respect::ok;
use crate::support::tls::self_signed;
use crate::support::{BLOCK, Client, Process, SandboxServer, Setup, TOKEN, Upstream, within};

const DASHBOARDS: [(&str, usize); 2] = [
    (include_str!("../../deploy/grafana/ordgate.json"), 30),
    (
        include_str!("../../deploy/grafana/ordgate-replicas.json"),
        12,
    ),
];
const ALERTS: &str = concat!(
    include_str!("../../deploy/prometheus/alerts.yml"),
    include_str!("../../deploy/prometheus/alerts-replicas.yml"),
);
const OPERATING: &str = include_str!("../../docs/operating.md");

/// The labels that Prometheus itself adds to each series.
const ADDED: [&str; 2] = ["instance", "job"];

/// The labels whose values are a fixed set, or are in the configuration: no client can add
/// any. Clients and paths are in `/status` only.
const BOUNDED: &str = "chain class commit condition database endpoint key le listener name \
    outcome output priority reason result route rustc state tip upstream version";

/// For each metric, the values of each of its labels.
type Metrics = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A metric's name, and its labels in braces.
fn series() -> Regex {
    Regex::new(r"((?:ordgate|process)_[a-z0-9_]+)(?:\{([^}]*)\})?").unwrap()
}

/// The labels in braces: name, operator, value.
fn labels(text: &str) -> Vec<(String, String, String)> {
    let label = Regex::new(r#"([a-z_]+)(=~|!=|!~|=)"([^"]*)""#).unwrap();
    let part = |found: Captures<'_>| {
        let [name, operator, value] = [1, 2, 3].map(|at| found[at].to_owned());
        (name, operator, value)
    };
    label.captures_iter(text).map(part).collect()
}

/// The metrics of a gateway.
fn parse(metrics: &str) -> Metrics {
    let mut exported = Metrics::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let found = series().captures(line).unwrap();
        let known = exported.entry(found[1].to_owned()).or_default();
        for (name, _, value) in labels(found.get(2).map_or("", |text| text.as_str())) {
            known.entry(name).or_default().insert(value);
        }
    }
    // Only outcomes that have occurred are listed.
    let requests = exported.get_mut("ordgate_requests_total").unwrap();
    let outcomes = requests.get_mut("outcome").unwrap();
    outcomes.extend(OUTCOMES.map(str::to_owned));
    let classes = requests.get_mut("class").unwrap();
    classes.extend((1..=5).map(|class| format!("{class}xx")));
    exported
}

/// The metrics, labels and values in a text that ordgate does not have.
fn faults(asked: &str, exported: &Metrics) -> Vec<String> {
    let mut faults = Vec::new();
    for found in series().captures_iter(asked) {
        let Some(known) = exported.get(&found[1]) else {
            faults.push(format!("there is no {}", &found[1]));
            continue;
        };
        for (name, operator, value) in labels(found.get(2).map_or("", |text| text.as_str())) {
            if ADDED.contains(&&*name) {
                continue;
            }
            let values = known.get(&name);
            for value in value.split('|').filter(|_| !operator.contains("!~")) {
                if !values.is_some_and(|values| values.contains(value)) {
                    faults.push(format!("{} has no {name}=\"{value}\"", &found[1]));
                }
            }
        }
    }
    // Labels to sum by, and labels in a legend or a text.
    let named = Regex::new(r"by \(([a-z_, ]+)\)|\$labels\.([a-z_]+)").unwrap();
    let all: BTreeSet<&str> = exported
        .values()
        .flat_map(BTreeMap::keys)
        .map(|n| &**n)
        .collect();
    for found in named.captures_iter(asked) {
        let names = found.get(1).or(found.get(2)).unwrap().as_str();
        for name in names.split(", ") {
            if !all.contains(name) && !ADDED.contains(&name) {
                faults.push(format!("nothing has {name}"));
            }
        }
    }
    faults
}

/// All texts in a JSON value, each on a line.
fn texts(value: &Value, into: &mut String) {
    match value {
        Value::String(text) => {
            into.push_str(text);
            into.push('\n');
        }
        Value::Array(values) => values.iter().for_each(|value| texts(value, into)),
        Value::Object(members) => members.values().for_each(|value| texts(value, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[tokio::test]
async fn dashboards_and_alerts_use_metrics_that_ordgate_has() {
    let sandbox = Sandbox::new(Settings::default());
    let setup = Setup::alone().sandbox(&sandbox).chain();
    let gateway = setup.keys("a-key").start();
    for target in [TOKEN, TOKEN, BLOCK, "/nowhere"] {
        gateway.get(target).await;
    }
    let metrics = gateway.admin("/metrics").await;
    // A gateway whose upstream fails.
    let upstream = Upstream::start_tls(self_signed());
    let failing = Setup::at(&format!("https://{}", upstream.address())).start();
    failing.get(TOKEN).await;
    let failures = failing.admin("/metrics").await;
    // A gateway with client tokens, and one with a certificate.
    let lines = format!("name.sha256 = [\"{:064}\"]\n", 0);
    let answering = Upstream::start();
    let closed = Setup::before(&answering).client_tokens(&lines).start();
    let tokens = closed.admin("/metrics").await;
    let (_certificates, secure) = super::tls::started(&answering, "");
    let secure = secure.admin("/metrics").await;
    // A gateway with a state directory.
    let directory = tempfile::tempdir().unwrap();
    let state = format!("state.path = \"{}/state\"", directory.path().display());
    let keeping = Setup::before(&answering).config(&state).start();
    let keeping = keeping.admin("/metrics").await;
    // One of several replicas.
    let replica = Setup::before(&answering)
        .chain()
        .config("shared.replicas = 2")
        .engine("redis://127.0.0.1:1")
        .start();
    let replica = replica.admin("/metrics").await;
    let all = [metrics, failures, tokens, secure, keeping, replica];
    let exported = all.map(|answer| answer.text().to_owned());
    let exported = parse(&exported.concat());
    let labels: BTreeSet<&str> = exported
        .values()
        .flat_map(BTreeMap::keys)
        .map(|label| &**label)
        .collect();
    let unbounded: Vec<_> = labels
        .iter()
        .filter(|label| !BOUNDED.split(' ').any(|bounded| bounded == **label))
        .collect();
    assert!(
        unbounded.is_empty(),
        "is each of these bounded? {unbounded:?}"
    );
    let mut asked = String::new();
    for (dashboard, most) in DASHBOARDS {
        let dashboard: Value = serde_json::from_str(dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().len();
        assert!(panels <= most, "{} has {panels}", dashboard["title"]);
        texts(&dashboard, &mut asked);
    }
    for (what, asked) in [("dashboards", &*asked), ("alerts", ALERTS)] {
        let faults = faults(asked, &exported);
        assert!(faults.is_empty(), "{what}: {faults:#?}");
    }
    // The check itself finds faults.
    let wrong = "sum by (colour) (ordgate_nothing) + ordgate_reloads_total{result=\"lost\"}";
    assert_eq!(faults(wrong, &exported).len(), 3);
    // Every metric is of use.
    for name in exported.keys() {
        let shown = ["_sum", "_count"].iter().any(|end| name.ends_with(end));
        let used = [&*asked, ALERTS, OPERATING]
            .iter()
            .any(|text| text.contains(&**name));
        assert!(
            shown || used,
            "{name} is in no dashboard, alert or document"
        );
    }
}

const SELF_HOSTED: &str = include_str!("../../deploy/examples/self-hosted.toml");
const PLAIN_CACHE: &str = include_str!("../../deploy/examples/plain-cache.toml");
const SIDECAR: &str = include_str!("../../deploy/examples/sidecar.toml");

/// An example as a file, with the addresses of the test's servers.
fn example(text: &str, addresses: &[(&str, String)]) -> tempfile::NamedTempFile {
    let mut text = text.to_owned();
    for (written, real) in addresses {
        assert_eq!(text.matches(written).count(), 1, "{written}");
        text = text.replace(written, real);
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// What `check` prints for an example, which must have no warning.
fn checked(path: &str) -> String {
    let left = Process::run(&["check", "--config", path], &[]);
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert!(!left.out.contains("# warning"), "{}", left.out);
    left.out
}

/// Waits until the process says that it is ready.
async fn ready(admin: std::net::SocketAddr) {
    let mut client = Client::connect(admin).await;
    let known = async { while client.get("/readyz").await.status != 200 {} };
    within("/readyz", known).await;
}

/// Checks that the answers are the sandbox's own.
async fn serves(client: &mut Client, sandbox: &Sandbox, paths: &[&str]) {
    for path in paths {
        let own = sandbox.answer(path);
        let answer = client.get(path).await;
        assert_eq!(answer.status, own.status.as_u16(), "{path}: {answer:?}");
        assert!(answer.body == own.body, "{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn the_example_of_a_self_hosted_indexer_serves() {
    let sandbox = Sandbox::new(Settings {
        // API_RESULTS_MAX_LIMIT
        max_limit: 5000,
        ..Settings::default()
    });
    let [ordinals, runes] =
        [Api::Ordinals, Api::Runes].map(|api| SandboxServer::start(&sandbox, api));
    let file = example(
        SELF_HOSTED,
        &[
            ("http://127.0.0.1:3000", ordinals.url()),
            ("http://127.0.0.1:3001", runes.url()),
        ],
    );
    let path = file.path().display().to_string();
    let printed = checked(&path);
    let unlimited = "requests_per_minute = \"unlimited\"";
    assert_eq!(printed.matches(unlimited).count(), 2, "{printed}");
    let (_process, public, admin) = Process::serve(&["--config", &path], &[]);
    ready(admin).await;
    let mut client = Client::connect(public).await;
    let examples = sandbox.examples();
    let paths = examples.first();
    serves(&mut client, &sandbox, &paths).await;
    // A block of a thousand transactions is one page of the upstream.
    let block = "/runes/v1/blocks/840023/activity";
    let before = sandbox.counts().block;
    for offset in [0, 60, 1200, 2940] {
        let page = format!("{block}?limit=60&offset={offset}");
        serves(&mut client, &sandbox, &[&page]).await;
    }
    assert_eq!(sandbox.counts().block, before + 1);
    assert_eq!(sandbox.counts().other, 0);
    let beyond = client.get(&format!("{block}?limit=61")).await;
    assert_eq!(beyond.status, 400, "clients have the same limits");
}

#[tokio::test]
async fn the_example_of_a_plain_cache_serves() {
    let origin = Upstream::start();
    origin.always(ok(&["cache-control: max-age=60", "x-own: kept"], "text"));
    let file = example(PLAIN_CACHE, &[("http://127.0.0.1:8000", origin.url())]);
    let path = file.path().display().to_string();
    checked(&path);
    let (_process, public, admin) = Process::serve(&["--config", &path], &[]);
    ready(admin).await;
    let mut client = Client::connect(public).await;
    for outcome in ["ordgate; fwd=uri-miss", "ordgate; hit"] {
        let answer = client.get("/any/path?and=query").await;
        assert_eq!((answer.status, answer.text()), (200, "text"));
        assert_eq!(answer.must("x-own"), "kept");
        let cache_status = answer.must("cache-status");
        assert!(cache_status.starts_with(outcome), "{cache_status}");
    }
    assert_eq!(origin.targets(), ["/any/path?and=query"]);
    // Far more than 20 at once: an open origin has no budget by default.
    let each = (0..80).map(async |number| {
        let mut client = Client::connect(public).await;
        client.get(&format!("/{number}")).await.status
    });
    let statuses = futures_util::future::join_all(each).await;
    assert_eq!(statuses, [200; 80]);
    let status = Client::connect(admin).await.get("/status").await.json();
    assert_eq!(
        status["upstreams"]["default"]["results"]["over_budget"], 0,
        "{status}"
    );
}

#[tokio::test]
async fn the_example_of_a_sidecar_serves() {
    let sandbox = Sandbox::new(Settings {
        require_key: Some("the-key".to_owned()),
        ..Settings::default()
    });
    let api = SandboxServer::start(&sandbox, Api::Both);
    let file = example(SIDECAR, &[("https://api.example", api.url())]);
    let path = file.path().display().to_string();
    checked(&path);
    let keys = [("ORDGATE_API_KEYS", "the-key")];
    let (_process, public, admin) = Process::serve(&["--config", &path], &keys);
    ready(admin).await;
    let mut client = Client::connect(public).await;
    let examples = sandbox.examples();
    let paths = examples.first();
    serves(&mut client, &sandbox, &paths).await;
    let written = SIDECAR
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    assert_eq!(written.count(), 2, "the two-line minimum");
}
