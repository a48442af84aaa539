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

/// Whether a text says what is to be logged.
pub fn is_filter(text: &str) -> bool {
    !text.is_empty() && text.parse::<Targets>().is_ok()
}

/// Begins to log, to standard error. `ORDGATE_LOG` overrides the settings.
///
/// # Errors
/// Where something logs already.
pub fn begin(settings: &Settings) -> Result<(), TryInitError> {
    let wanted = std::env::var("ORDGATE_LOG")
        .ok()
        .filter(|text| is_filter(text));
    let filter: Targets = wanted
        .as_ref()
        .unwrap_or(&settings.level)
        .parse()
        .unwrap_or_else(|_| Targets::new());
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
    tracing_subscriber::registry().with(layer).try_init()
}
