//! What Prometheus's own tool says of the alerts. Without
//! `promtool` (Debian's package `prometheus`), the tests say that they do not run.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs promtool with this on its standard input; `None` if it is not installed.
fn promtool(arguments: &[&str], input: &str) -> Option<Output> {
    let started = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut running) = started else {
        assert!(std::env::var_os("ORDGATE_CI").is_none(), "CI has promtool");
        eprintln!("NOT RUN: there is no promtool");
        return None;
    };
    let mut to = running.stdin.take().unwrap();
    // It may end before it has read all.
    let _ = to.write_all(input.as_bytes());
    drop(to);
    Some(running.wait_with_output().unwrap())
}

/// What it says, all of it.
fn said(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    texts.concat()
}

fn rules(file: &str) -> String {
    format!("{}/deploy/prometheus/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn alerts_have_no_fault() {
    for file in ["alerts.yml", "alerts-replicas.yml"] {
        let Some(checked) = promtool(&["check", "rules", &rules(file)], "") else {
            return;
        };
        assert!(checked.status.success(), "{file}: {}", said(&checked));
    }
}

#[test]
fn one_dead_instance_of_several_is_an_alert_and_a_removed_one_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.yml");
    let text = format!(
        r#"
rule_files: ["{}"]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{ series: 'up{{job="ordgate", instance="a"}}', values: "1x20" }}
      - {{ series: 'ordgate_build_info{{job="ordgate", instance="a"}}', values: "1x20" }}
      - {{ series: 'up{{job="ordgate", instance="b"}}', values: "1x5 0x15" }}
      - {{ series: 'ordgate_build_info{{job="ordgate", instance="b"}}', values: "1x5 stale" }}
      # It was removed from the targets.
      - {{ series: 'up{{job="ordgate", instance="c"}}', values: "1x5 stale" }}
      - {{ series: 'ordgate_build_info{{job="ordgate", instance="c"}}', values: "1x5 stale" }}
      # It is something else.
      - {{ series: 'up{{job="other", instance="d"}}', values: "0x20" }}
    promql_expr_test:
      - expr: 'count(ALERTS{{alertname="OrdgateDown", alertstate="firing"}}) or vector(0)'
        eval_time: 5m
        exp_samples: [{{ labels: '{{}}', value: 0 }}]
      - expr: 'ALERTS{{alertname="OrdgateDown", alertstate="firing"}}'
        eval_time: 15m
        exp_samples:
          - labels: 'ALERTS{{alertname="OrdgateDown", alertstate="firing", instance="b", job="ordgate", severity="page"}}'
            value: 1
"#,
        rules("alerts.yml")
    );
    fs::write(&path, text).unwrap();
    let arguments = ["test", "rules", path.to_str().unwrap()];
    if let Some(tested) = promtool(&arguments, "") {
        assert!(tested.status.success(), "{}", said(&tested));
    }
}
