//! What the operator sees: logs and metrics. Doors only; what is counted is
//! counted where it happens.

mod metrics;

use std::io::IsTerminal;

pub use metrics::render;
use serde::Serialize;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// A level, or a list of `target=level`.
    pub level: String,
    /// How a line looks.
    pub format: Format,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Format {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("auto", Self::Auto),
        ("text", Self::Text),
        ("json", Self::Json),
    ];
}

/// What a text that says what is to be logged may be.
pub const FILTER: &str = "a level (error, warn, info, debug, trace, off) or a list such as \"info,ordgate::access=debug\"";

/// Whether a text says what is to be logged. A word on its own is a level: its
/// parser would take any other for a target, and log nothing else.
pub fn is_filter(text: &str) -> bool {
    let is_level = |word: &str| {
        let levels = ["error", "warn", "info", "debug", "trace", "off"];
        levels.iter().any(|level| level.eq_ignore_ascii_case(word))
    };
    let fits = |part: &str| match part.split_once('=') {
        Some((target, level)) => {
            let blank = target.is_empty() || target.contains(char::is_whitespace);
            !blank && is_level(level)
        }
        None => is_level(part),
    };
    text.split(',').all(fits) && text.parse::<Targets>().is_ok()
}

/// Why logging cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// `ORDGATE_LOG` says nothing that is understood.
    #[error("ORDGATE_LOG is \"{0}\"; allowed is {FILTER}")]
    Variable(String),
    /// Something logs already.
    #[error(transparent)]
    Already(#[from] TryInitError),
}

/// Begins to log, to standard error. `ORDGATE_LOG` overrides the settings,
/// unless it is empty.
///
/// # Errors
/// Where the variable is not understood, or something logs already.
pub fn begin(settings: &Settings) -> Result<(), BeginError> {
    let variable = std::env::var_os("ORDGATE_LOG").unwrap_or_default();
    let wanted = variable.to_string_lossy();
    let filter: Targets = match &*wanted {
        "" => settings.level.parse().unwrap_or_else(|_| Targets::new()),
        text => match text.parse() {
            Ok(filter) if is_filter(text) => filter,
            _ => return Err(BeginError::Variable(text.to_owned())),
        },
    };
    let terminal = std::io::stderr().is_terminal();
    let json = match settings.format {
        Format::Auto => !terminal,
        Format::Text => false,
        Format::Json => true,
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let layer = match json {
        true => layer.json().flatten_event(true).with_filter(filter).boxed(),
        false => layer.with_ansi(terminal).with_filter(filter).boxed(),
    };
    Ok(tracing_subscriber::registry().with(layer).try_init()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        for (text, good) in [
            ("info", true),
            ("INFO", true),
            ("off", true),
            ("info,ordgate::access=debug", true),
            ("ordgate=trace", true),
            ("warn,hyper=off,ordgate=Debug", true),
            ("", false),
            ("loud", false),
            ("3", false),
            ("info,loud", false),
            ("ordgate", false),
            ("info,", false),
            ("info ", false),
            ("info, ordgate=debug", false),
            ("=info", false),
            ("ordgate=", false),
            ("ordgate=loud", false),
        ] {
            assert_eq!(is_filter(text), good, "{text}");
        }
    }
}
