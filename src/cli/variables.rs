//! The environment variables that ordgate reads.

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
        about: "The URL of the engine that replicas share, with its password.",
    },
    Variable {
        name: "ORDGATE_SHARED_REPLICAS",
        about: "The number of replicas, as shared.replicas.",
    },
    Variable {
        name: "ORDGATE_SHARED_NAME",
        about: "The name of this replica, as shared.name.",
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
