//! Logs, metrics, and the export of traces. The counters are in the modules that count.

mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
pub(crate) mod process;

use std::io::{self, IsTerminal};

pub use metrics::{MEDIA_TYPE, render};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::access_log;
use crate::log_writer::Destination;

/// Logs, on standard error.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What is logged: error, warn, info, debug, trace or off; or a list such as
    /// "info,ordgate::upstream=debug". Release builds have no messages of level trace. A
    /// level without a target is that of ordgate's own messages: of the libraries, only
    /// errors are logged, unless the list names them, as in "info,h2=debug,rustls=debug".
    ///
    /// The environment variable ORDGATE_LOG takes precedence. A change needs a restart.
    pub level: String,
    /// "auto" is text on a terminal, JSON elsewhere. A change needs a restart.
    pub format: Format,
    pub(crate) access: access_log::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: Format::Auto,
            access: access_log::Settings::default(),
        }
    }
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// Text.
    Text,
    /// JSON.
    Json,
}

/// What a filter may be, for error texts.
pub const FILTER: &str = "a level (error, warn, info, debug, trace, off) or a list such as \"info,ordgate::access=debug\"";

/// The filter of a text, if it is one: a single word must be a level, since the parser of
/// tracing would take any other word for a target, and log only that.
///
/// A level without a target is that of ordgate's own messages. Of the libraries, which have
/// warnings that a client can cause with a single frame, it lets errors through, and what the
/// text names.
pub fn filter(text: &str) -> Option<Targets> {
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
    let named: Targets = text.parse().ok().filter(|_| text.split(',').all(fits))?;
    let Some(level) = named.default_level() else {
        return Some(named);
    };
    let own = [("ordgate", level)].into_iter();
    let targets = own.chain(named.iter()).collect::<Targets>();
    Some(targets.with_default(level.min(LevelFilter::ERROR)))
}

/// Starts logging to standard error.
///
/// # Errors
/// If logging has started already.
pub fn begin(settings: &Settings) -> Result<(), TryInitError> {
    let filter = filter(&settings.level).unwrap_or_default();
    let terminal = io::stderr().is_terminal();
    let json = match settings.format {
        Format::Auto => !terminal,
        Format::Text => false,
        Format::Json => true,
    };
    let layer =
        tracing_subscriber::fmt::layer().with_writer(|| Destination::StandardError.writer());
    let layer = match json {
        true => layer.json().flatten_event(true).with_filter(filter).boxed(),
        false => layer.with_ansi(terminal).with_filter(filter).boxed(),
    };
    tracing_subscriber::registry().with(layer).try_init()
}
