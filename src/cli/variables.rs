//! The environment variables that ordgate reads.

use std::ffi::OsStr;

use ordgate::secrets;

/// What their names begin with.
const PREFIX: &str = "ORDGATE_";
/// What the names of variables with an upstream's own keys begin with.
const OWN_KEYS: &str = "ORDGATE_API_KEYS_";

/// A variable, and what it is for.
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
}

/// All variables whose names begin with ORDGATE_. Flags take precedence over them, and
/// they take precedence over the configuration file.
pub(super) const VARIABLES: &[Variable] = &[
    Variable {
        name: "ORDGATE_CONFIG",
        about: "The configuration file, as --config.",
    },
    Variable {
        name: "ORDGATE_LISTEN",
        about: "The addresses for clients, as --listen, separated by commas.",
    },
    Variable {
        name: "ORDGATE_ADMIN",
        about: "The address for the operator, as --admin.",
    },
    Variable {
        name: "ORDGATE_UPSTREAM",
        about: "The API's base URLs, as --upstream, separated by commas.",
    },
    Variable {
        name: "ORDGATE_STATE",
        about: "The state directory, as --state.",
    },
    Variable {
        name: "ORDGATE_API_KEYS",
        about: "The provider's API keys, separated by commas. Or upstream.api_keys_file.",
    },
    Variable {
        name: "ORDGATE_API_KEYS_NAME",
        about: "The keys of the upstream NAME (in upper case, - as _) alone.",
    },
    Variable {
        name: "ORDGATE_ADMIN_TOKEN",
        about: "The token of the admin listener. Or admin.token_file.",
    },
    Variable {
        name: "ORDGATE_LOG",
        about: "What is logged: a level (error, warn, info, debug or trace).",
    },
    Variable {
        name: "ORDGATE_SHARED_URL",
        about: "The URL of the engine that replicas share. Or shared.url_file.",
    },
    Variable {
        name: "ORDGATE_SHARED_REPLICAS",
        about: "The number of replicas, as shared.replicas.",
    },
];

/// The variables as `ordgate help` has them.
pub(super) fn help() -> String {
    let mut text = "Environment variables:\n".to_owned();
    for Variable { name, about } in VARIABLES {
        text.push_str(&format!("  {name}\n          {about}\n"));
    }
    text.push_str("\nTraces are exported if OTEL_EXPORTER_OTLP_ENDPOINT is set.");
    text
}

/// Warnings about variables that look like ordgate's and are none: each with the known one
/// that is probably meant. Never with a value.
pub(super) fn unknown() -> Vec<String> {
    let mut names = secrets::variables_with_prefix(PREFIX);
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let has_url = |name: &str| std::env::var_os(name).is_some_and(|value| is_port_url(&value));
    names.retain(|name| !is_known(name) && !is_of_kubernetes(name, is_set, has_url));
    names.iter().map(|name| warning(name)).collect()
}

fn is_known(name: &str) -> bool {
    name.starts_with(OWN_KEYS) || VARIABLES.iter().any(|known| known.name == name)
}

/// Whether a value is what Kubernetes gives a variable `*_PORT`.
fn is_port_url(value: &OsStr) -> bool {
    let schemes = ["tcp://", "udp://", "sctp://"];
    let value = value.as_encoded_bytes();
    schemes
        .iter()
        .any(|scheme| value.starts_with(scheme.as_bytes()))
}

/// Whether Kubernetes sets such variables for a service whose name begins with "ordgate".
/// One ending in `_PORT` may be a mistake: it has a URL, or the service has a host.
fn is_of_kubernetes(
    name: &str,
    is_set: impl Fn(&str) -> bool,
    has_url: impl Fn(&str) -> bool,
) -> bool {
    let is_service = |service: &str| has_url(name) || is_set(&format!("{service}_SERVICE_HOST"));
    let is_port = |rest: &str| {
        let number = rest.split('_').next().unwrap_or_default();
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.strip_suffix("_PORT").is_some_and(is_service)
        || name.split("_PORT_").skip(1).any(is_port)
}

fn warning(name: &str) -> String {
    let short = |name: &str| name.trim_start_matches(PREFIX).to_ascii_lowercase();
    let known: Vec<_> = VARIABLES.iter().map(|known| short(known.name)).collect();
    let wanted = short(name);
    // ORDGATE_ADMIN_LISTEN means ORDGATE_ADMIN, though ORDGATE_ADMIN_TOKEN looks more like it.
    let names = || known.iter().map(|name| &**name);
    let prefixes = names().filter(|known| wanted.starts_with(known));
    let longest = prefixes.max_by_key(|name| name.len());
    let meant = longest.or_else(|| nearest(&wanted, names()));
    let meant = meant.map(|meant| format!("{PREFIX}{}", meant.to_ascii_uppercase()));
    match meant {
        Some(meant) => format!("{name} has no effect: did you mean {meant}?"),
        None => format!("{name} has no effect: `ordgate help` lists the variables"),
    }
}

/// The name that a misspelt one probably stands for.
fn nearest<'n>(text: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    /// How alike two names are at least, from 0 to 1.
    const ALIKE: f64 = 0.8;
    let rated = names.map(|name| (strsim::jaro_winkler(text, name), name));
    let best = rated.filter(|(alike, _)| *alike >= ALIKE);
    let best = best.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.map(|(_, name)| name)
}
