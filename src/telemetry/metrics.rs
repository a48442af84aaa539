//! `/metrics`: the figures of `/status` as OpenMetrics text. [`FAMILIES`] says which member
//! of `/status` is which metric.

use std::fmt::Display;

use serde_json::Value;

use crate::meter::latency::BOUNDS;
use crate::upstream::failover::Condition;

/// The media type of OpenMetrics text.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a member of `/status` is as a metric. Without the member there is no sample.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    /// A number, or a boolean as 0 and 1.
    Gauge,
    /// 1 if the member is not null, otherwise 0.
    Present,
    /// For each of these values of a label, 1 if the member has it, otherwise 0.
    OneOf(&'static str, &'static [&'static str]),
    Histogram,
}
use Kind::{Counter, Gauge, Histogram, OneOf, Present};

const KEY_STATES: &[&str] = &["ready", "cooling", "quarantined"];

/// Kind, name and description of each family, the path of its members in `/status`, and
/// its labels.
///
/// In a path `*` stands for each element of an array, and `{label}` for each member of an
/// object, whose name becomes the label's value. A label's value is in the member of the same
/// name on the path, or in that which follows `<`, or follows `=`. Neighbours of one name are
/// one family.
#[rustfmt::skip]
const FAMILIES: &[(Kind, &str, &str, &str, &str)] = &[
    (Counter, "ordgate_requests", "Requests answered, by route, outcome (a fresh or stale stored response, an answer of the upstream, a document of ordgate's own, a preflight, or a refusal) and class of status code", "requests/*/requests", "route outcome class"),
    (Counter, "ordgate_refused", "Requests that were refused or that failed, by reason", "refused/{reason}", ""),
    (Histogram, "ordgate_request_duration_seconds", "From the last byte of a request to the head of its response, by route and outcome", "histograms/requests/*/times", "route outcome"),
    (Gauge, "ordgate_connections", "Client connections open", "connections/open", ""),
    (Counter, "ordgate_connections_accepted", "Client connections accepted", "connections/accepted", ""),
    (Counter, "ordgate_connections_turned_away", "Client connections turned away because there were too many in total, or too many of one client, and none was idle", "connections/turned_away", "reason=total"),
    (Counter, "ordgate_connections_turned_away", "", "connections/turned_away_client", "reason=client"),
    (Counter, "ordgate_connections_reset", "Client connections closed because the client read its response too slowly, because unread responses held too much memory, or to make room for others", "connections/reset_slow", "reason=slow"),
    (Counter, "ordgate_connections_reset", "", "connections/reset_unsent", "reason=unsent"),
    (Counter, "ordgate_connections_reset", "", "connections/closed_for_others", "reason=room"),
    (Counter, "ordgate_http2_floods", "Client connections closed because they sent far more HTTP/2 frames than requests", "connections/http2_floods", ""),
    (Gauge, "ordgate_unsent_bytes", "Memory held by responses that clients have not read yet", "unsent/bytes", ""),
    (Gauge, "ordgate_unsent_max_bytes", "The bound on that memory", "unsent/max_bytes", ""),
    (Counter, "ordgate_tls_handshakes", "TLS handshakes by version and result: with a new session or a resumed one, or, without a version, why the connection was closed", "tls_handshakes/{version}/{result}", ""),
    (Gauge, "ordgate_tls_certificate_days", "Whole days until a certificate expires; negative afterwards", "listeners/*/tls/certificates/*/days", "listener<address chain"),
    (Present, "ordgate_tls_certificate_refused", "Whether the files of a certificate have changed and were refused, so that the previous one is in use", "listeners/*/tls/certificates/*/refused", "listener<address chain"),
    (Counter, "ordgate_token_client_requests", "Requests with a valid client token, by name, for the 100 names with the most requests since the start: within the limit of their client, or refused with 429", "client_tokens/busiest/*/requests", "name result=admitted"),
    (Counter, "ordgate_token_client_requests", "", "client_tokens/busiest/*/limited", "name result=limited"),
    (Counter, "ordgate_reloads", "Reloads of the configuration: done, or refused because it was invalid", "reload/done", "result=done"),
    (Counter, "ordgate_reloads", "", "reload/refused", "result=refused"),
    (Gauge, "ordgate_reload_ok", "Whether the last reload was done; 1 if there was none", "reload/ok", ""),
    (Counter, "ordgate_log_lines_dropped", "Lines of the log, and of the access log, that were dropped because standard error or standard output took none", "log_lines_dropped/{output}", ""),
    (Counter, "ordgate_purges", "Purges, by the operator and by reorgs", "chain/purges", ""),
    (Gauge, "ordgate_cache_bytes", "Memory held by stored responses", "cache/bytes", ""),
    (Gauge, "ordgate_cache_max_bytes", "The bound on that memory", "cache/max_bytes", ""),
    (Present, "ordgate_state_fault", "Whether a database of the state directory is not used until a restart, after an error", "state_directory/answers/fault", "database=answers.db"),
    (Present, "ordgate_state_fault", "", "state_directory/spent/fault", "database=spent.db"),
    (Gauge, "ordgate_state_bytes", "Bytes of stored responses on disk", "state_directory/answers/bytes", ""),
    (Gauge, "ordgate_state_max_bytes", "Their bound", "state_directory/answers/max_bytes", ""),
    (Counter, "ordgate_state_look_ups", "Look-ups on disk: a response was found, or none in time", "state_directory/answers/hits", "result=hit"),
    (Counter, "ordgate_state_look_ups", "", "state_directory/answers/misses", "result=miss"),
    (Gauge, "ordgate_state_unknown_spending_seconds", "For how long API keys rest because it is not known what was spent before the start", "state_directory/spent/unknown_seconds", ""),
    (Gauge, "ordgate_shared_engine_up", "Whether the engine that replicas share answers", "shared/engine/is_up", ""),
    (Counter, "ordgate_shared_permits", "Requests for a permit of a budget's pool, by result", "shared/permits/{result}", ""),
    (Counter, "ordgate_shared_responses", "Look-ups of responses in the engine, by result", "shared/responses/{result}", ""),
    (Gauge, "ordgate_shared_purges_waiting", "Purges of this replica that the engine does not have yet", "shared/purges/waiting", ""),
    (Counter, "ordgate_tip_reorgs", "Reorgs seen in the answers of an indexer", "chain/tips/*/reorgs", "tip<name"),
    (Gauge, "ordgate_tip_moved_seconds", "Seconds since the status of a tip reported another one than before", "chain/tips/*/moved_seconds_ago", "tip<name"),
    (Gauge, "ordgate_tip_height", "The height of a tip, where one is known", "chain/tips/*/height", "tip<name"),
    (Gauge, "ordgate_tip_known", "Whether a probe has confirmed a tip recently; otherwise only times decide on freshness", "chain/tips/*/known", "tip<name"),
    (Gauge, "ordgate_tip_known_once", "Whether a tip has been known at any time since the start", "chain/tips/*/known_once", "tip<name"),
    (Counter, "process_cpu_seconds", "CPU time used, in user and system mode, in seconds", "process/cpu_seconds", ""),
    (Gauge, "process_resident_memory_bytes", "Resident memory", "process/resident_memory_bytes", ""),
    (Gauge, "process_open_fds", "Open file descriptors", "process/open_fds", ""),
    (Gauge, "process_max_fds", "The most file descriptors that may be open", "process/max_fds", ""),
    (Present, "ordgate_build_info", "The version of ordgate, and what it was built from", "version", "version commit rustc"),
    (Counter, "ordgate_upstream_results", "Results of requests to the upstream: answered, failed, or why it was not sent: no budget was left (over_budget), too many were in flight or waited (no_slot), the breaker was open (breaker_open), the key was in cooldown after a 429 (throttled) or was refused (key_refused); failed requests that were not retried because there were too many retries (unretried); and changes of the endpoint in use (switches)", "upstreams/{upstream}/results/{result}", ""),
    (Counter, "ordgate_upstream_requests", "Requests sent to the upstream, by route (none for probes of tips) and by reason: probe, miss, revalidation, retry, key-check, block-check (whether a block still is in the chain)", "upstreams/{upstream}/sent_for/*/requests", "route reason"),
    (Gauge, "ordgate_upstream_queue", "Requests that wait for budget or for a slot", "upstreams/{upstream}/queue", ""),
    (Histogram, "ordgate_upstream_queue_seconds", "How long requests waited before they were sent to the upstream", "histograms/waits/*/times", "upstream priority"),
    (Gauge, "ordgate_upstream_selected", "Which endpoint of an upstream is in use: 1 for that one, 0 for standbys", "upstreams/{upstream}/endpoints/*/selected", "endpoint<url"),
    (OneOf("condition", &Condition::NAMES), "ordgate_upstream_condition", "The condition of an endpoint: 1 for the current one, 0 for the others", "upstreams/{upstream}/endpoints/*/condition", "endpoint<url"),
    (Gauge, "ordgate_upstream_in_flight", "Requests in flight to an endpoint", "upstreams/{upstream}/endpoints/*/in_flight", "endpoint<url"),
    (Gauge, "ordgate_upstream_lag_blocks", "By how many blocks an endpoint is behind the best one of its upstream", "upstreams/{upstream}/endpoints/*/lag_blocks", "endpoint<url"),
    (Histogram, "ordgate_upstream_first_byte_seconds", "How long an endpoint took to the first byte of its answers", "histograms/first_byte/*/times", "upstream endpoint"),
    (Counter, "ordgate_upstream_failures", "Attempts that failed, by endpoint and reason", "upstreams/{upstream}/endpoints/*/failures/{reason}", "endpoint<url"),
    (Gauge, "ordgate_upstream_budget_left", "Requests left in this minute, for each key by name; absent where the budget is unlimited", "upstreams/{upstream}/keys/*/budget_left", "key<name"),
    (Gauge, "ordgate_upstream_budget_kept", "The part of the requests left that is kept for probes of the tip, for each key by name", "upstreams/{upstream}/keys/*/kept_for_probes", "key<name"),
    (Gauge, "ordgate_upstream_budget", "The most requests in a minute, for each key by name; absent where the budget is unlimited", "upstreams/{upstream}/keys/*/budget", "key<name"),
    (OneOf("state", KEY_STATES), "ordgate_upstream_key_state", "The state of a key, for each by name, at the host where it is worst: 1 for the current one, 0 for the others. ready; cooling (cooldown after 429); quarantined (after 401, 403)", "upstreams/{upstream}/keys/*/state", "key<name"),
];

/// The metrics of what `/status` is made from.
pub fn render(figures: &Value) -> String {
    let mut text = String::with_capacity(16 * 1024);
    for rows in FAMILIES.chunk_by(|(_, one, ..), (_, other, ..)| one == other) {
        let Some((kind, name, help, ..)) = rows.first() else {
            continue;
        };
        let mut found = Vec::new();
        for (.., path, labels) in rows {
            find(figures, path, labels, Labels::new(), &mut found);
        }
        let type_name = kind.type_name();
        text.push_str(&format!(
            "# HELP {name} {help}\n# TYPE {name} {type_name}\n"
        ));
        for (labels, value) in found {
            let labels = labels.iter();
            let labels = labels.map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
            let labels: Vec<_> = labels.collect();
            samples(*kind, value, |suffix, more, value| {
                let labels = [&labels[..], more].concat().join(",");
                text.push_str(&match labels.is_empty() {
                    true => format!("{name}{suffix} {value}\n"),
                    false => format!("{name}{suffix}{{{labels}}} {value}\n"),
                });
            });
        }
    }
    text.push_str("# EOF\n");
    text
}

/// Labels with their values.
type Labels = Vec<(String, String)>;

/// A label's value as OpenMetrics quotes it.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// Finds the members at a path, with their labels.
fn find<'v>(
    value: &'v Value,
    path: &str,
    wanted: &str,
    mut labels: Labels,
    found: &mut Vec<(Labels, &'v Value)>,
) {
    for wanted in wanted.split_whitespace() {
        let (label, member) = wanted.split_once('<').unwrap_or((wanted, wanted));
        match (wanted.split_once('='), value.get(member)) {
            (Some((label, constant)), _) => set(&mut labels, label, constant),
            (None, Some(Value::String(text))) => set(&mut labels, label, text),
            (None, Some(Value::Null)) => set(&mut labels, label, "none"),
            (None, _) => {}
        }
    }
    if path.is_empty() {
        // A certificate that is configured twice is one series.
        if found.iter().all(|(others, _)| *others != labels) {
            found.push((labels, value));
        }
        return;
    }
    let (step, rest) = path.split_once('/').unwrap_or((path, ""));
    if step == "*" {
        for element in value.as_array().into_iter().flatten() {
            find(element, rest, wanted, labels.clone(), found);
        }
    } else if let Some(label) = step
        .strip_prefix('{')
        .and_then(|step| step.strip_suffix('}'))
    {
        for (name, member) in value.as_object().into_iter().flatten() {
            let mut labels = labels.clone();
            set(&mut labels, label, name);
            find(member, rest, wanted, labels, found);
        }
    } else if let Some(member) = value.get(step) {
        find(member, rest, wanted, labels, found);
    }
}

/// Sets a label; that of an inner object takes the place of an outer one's.
fn set(labels: &mut Labels, label: &str, value: &str) {
    labels.retain(|(name, _)| name != label);
    labels.push((label.to_owned(), value.to_owned()));
}

/// Calls `add` for each sample of a member, with what follows the family's name, a label of its
/// own, and its value.
fn samples(kind: Kind, value: &Value, mut add: impl FnMut(&str, &[String], &dyn Display)) {
    match kind {
        Gauge if value.is_boolean() => add("", &[], &u8::from(*value == true)),
        Counter | Gauge if !value.is_number() => {}
        Counter => add("_total", &[], value),
        Gauge => add("", &[], value),
        Present => add("", &[], &u8::from(!value.is_null())),
        OneOf(label, all) => {
            for one in all {
                add("", &[format!("{label}=\"{one}\"")], &u8::from(value == one));
            }
        }
        Histogram => {
            let bounds = BOUNDS
                .iter()
                .map(|micros| format!("{:?}", *micros as f64 / 1e6));
            let counts = value["counts"].as_array().into_iter().flatten();
            let mut total = 0;
            for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
                total += count.as_u64().unwrap_or(0);
                add("_bucket", &[format!("le=\"{bound}\"")], &total);
            }
            add("_sum", &[], &value["sum"]);
            add("_count", &[], &total);
        }
    }
}

impl Kind {
    const fn type_name(self) -> &'static str {
        match self {
            Counter => "counter",
            Gauge | Present | OneOf(..) => "gauge",
            Histogram => "histogram",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_become_samples_with_their_labels() {
        let figures = json!({
            "upstreams": { "runes": { "name": "x", "keys": [
                { "name": "key-1", "budget": 500, "budget_left": null, "state": "cooling" },
            ] } },
            "chain": { "tips": [{ "name": "t", "known": true, "height": 7 }] },
            "requests": [{ "route": null, "outcome": "hit", "class": "2xx", "requests": 3 }],
            "log_lines_dropped": { "a\"b\\": 1 },
            "histograms": { "waits": [{ "upstream": "u", "priority": "probe",
                "times": { "counts": [2, 1], "sum": 0.25 } }] },
            "state_directory": { "answers": { "fault": null }, "spent": { "fault": "lost" } },
        });
        let text = render(&figures);
        for line in [
            "ordgate_upstream_budget{upstream=\"runes\",key=\"key-1\"} 500",
            "ordgate_upstream_key_state{upstream=\"runes\",key=\"key-1\",state=\"cooling\"} 1",
            "ordgate_upstream_key_state{upstream=\"runes\",key=\"key-1\",state=\"ready\"} 0",
            "ordgate_tip_known{tip=\"t\"} 1",
            "ordgate_tip_height{tip=\"t\"} 7",
            "ordgate_requests_total{route=\"none\",outcome=\"hit\",class=\"2xx\"} 3",
            "ordgate_state_fault{database=\"answers.db\"} 0",
            "ordgate_state_fault{database=\"spent.db\"} 1",
            r#"ordgate_log_lines_dropped_total{output="a\"b\\"} 1"#,
            "ordgate_upstream_queue_seconds_bucket{upstream=\"u\",priority=\"probe\",le=\"2e-5\"} 3",
            "ordgate_upstream_queue_seconds_sum{upstream=\"u\",priority=\"probe\"} 0.25",
            "ordgate_upstream_queue_seconds_count{upstream=\"u\",priority=\"probe\"} 3",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in\n{text}");
        }
        assert!(!text.contains("ordgate_upstream_budget_left{"), "{text}");
    }
}
