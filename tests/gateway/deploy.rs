//! What is handed out for those who watch: that the dashboard and the alerts ask
//! for nothing which ordgate does not tell.

use std::collections::{BTreeMap, BTreeSet};

use ordgate::cache::outcome::OUTCOMES;
use ordgate::sandbox::{Sandbox, Settings};
use regex_lite::{Captures, Regex};
use serde_json::Value;

use crate::support::tls::self_signed;
use crate::support::{BLOCK, Setup, TOKEN, Upstream};

const DASHBOARD: &str = include_str!("../../deploy/grafana/ordgate.json");
const ALERTS: &str = include_str!("../../deploy/prometheus/alerts.yml");

/// What Prometheus itself adds to each series.
const ADDED: [&str; 2] = ["instance", "job"];

/// Of each series by its name, the values of each of its labels.
type Told = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A name, and what stands in braces after it.
fn series() -> Regex {
    Regex::new(r"(ordgate_[a-z_]+)(?:\{([^}]*)\})?").unwrap()
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

/// What a gateway tells.
fn told(metrics: &str) -> Told {
    let mut told = Told::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let found = series().captures(line).unwrap();
        let known = told.entry(found[1].to_owned()).or_default();
        for (name, _, value) in labels(found.get(2).map_or("", |text| text.as_str())) {
            known.entry(name).or_default().insert(value);
        }
    }
    // Only those are told that have been counted.
    let requests = told.get_mut("ordgate_requests_total").unwrap();
    let outcomes = requests.get_mut("outcome").unwrap();
    outcomes.extend(OUTCOMES.map(str::to_owned));
    let classes = requests.get_mut("class").unwrap();
    classes.extend((1..=5).map(|class| format!("{class}xx")));
    told
}

/// Everything that is wrong with what is asked for.
fn faults(asked: &str, told: &Told) -> Vec<String> {
    let mut faults = Vec::new();
    for found in series().captures_iter(asked) {
        let Some(known) = told.get(&found[1]) else {
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
    // What is summed by, and what a legend or a text names.
    let named = Regex::new(r"by \(([a-z_, ]+)\)|\$labels\.([a-z_]+)").unwrap();
    let all: BTreeSet<&str> = told
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
async fn dashboard_and_alerts_ask_for_what_is_told() {
    let sandbox = Sandbox::new(Settings::default());
    let gateway = Setup::alone().sandbox(&sandbox).chain().start();
    for target in [TOKEN, TOKEN, BLOCK, "/nowhere"] {
        gateway.get(target).await;
    }
    let metrics = gateway.admin("/metrics").await;
    // One whose upstream fails.
    let upstream = Upstream::start_tls(self_signed());
    let failing = Setup::at(&format!("https://{}", upstream.address())).start();
    failing.get(TOKEN).await;
    let failures = failing.admin("/metrics").await;
    let told = told(&[metrics.text(), failures.text()].concat());
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut asked = String::new();
    texts(&dashboard, &mut asked);
    for (what, asked) in [("dashboard", &*asked), ("alerts", ALERTS)] {
        let faults = faults(asked, &told);
        assert!(faults.is_empty(), "{what}: {faults:#?}");
    }
    // That this sees anything at all.
    let wrong = "sum by (colour) (ordgate_nothing) + ordgate_reloads_total{result=\"lost\"}";
    assert_eq!(faults(wrong, &told).len(), 3);
    // And that the dashboard shows all that there is.
    for name in told.keys() {
        let shown = ["_sum", "_count"].iter().any(|end| name.ends_with(end));
        assert!(shown || asked.contains(&**name), "{name} is not shown");
    }
}

#[test]
fn the_dashboard_holds_together() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut numbers = BTreeSet::new();
    let mut taken: BTreeSet<(u64, u64)> = BTreeSet::new();
    for panel in panels {
        assert!(numbers.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|at| panel["gridPos"][at].as_u64().unwrap());
        assert!(x + w <= 24, "{panel}");
        let places = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        for place in places {
            assert!(taken.insert(place), "one lies on another: {panel}");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["title"].as_str().unwrap().is_empty());
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
            assert!(target["expr"].as_str().is_some_and(|expr| !expr.is_empty()));
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!(variables[0]["name"], "datasource");
}

#[test]
fn each_alert_says_what_it_is_and_what_to_do() {
    let alerts: Vec<&str> = ALERTS.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 10);
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        for part in ["expr:", "severity: ", "summary: ", "description: "] {
            assert_eq!(alert.matches(part).count(), 1, "{name}: {part}");
        }
        let severity = alert.split("severity: ").nth(1).unwrap();
        let known = ["page", "ticket"]
            .iter()
            .any(|word| severity.starts_with(word));
        assert!(known, "{name}");
        assert!(!alert.contains('\t'), "{name}");
    }
}
