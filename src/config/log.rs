//! `[log]`: what is logged, and how.

use super::containers::{list, table};
use super::key::keys;
use super::kinds::{Choice, Flag, ParsedText, choice, integer, text, when};
use crate::access_log::{self, Field, LogLevel};
use crate::telemetry::{self, Format};

const FILTER: ParsedText<String> = text(telemetry::FILTER, ".", |text| {
    when(telemetry::is_filter(text), text)
});

const FIELDS: Choice<Field> = choice(&Field::NAMES);

keys! {
    /// Logs, on standard error.
    pub(super) struct LogKeys {
        /// What is logged: error, warn, info, debug, trace or off; or a list such as
        /// "info,ordgate::upstream=debug". Release builds have no messages of level trace.
        ///
        /// The environment variable ORDGATE_LOG takes precedence. A change needs a
        /// restart.
        level: String = FILTER => "info".to_owned(), shown();
        /// "text", "json" or "auto": text on a terminal, JSON elsewhere.
        ///
        /// A change needs a restart.
        format: Format = choice(&Format::NAMES) => Format::Auto, shown();
        access: AccessKeys = table() => AccessKeys::defaults();
    }
}

keys! {
    /// The access log: a line for each request.
    pub(super) struct AccessKeys {
        /// Whether requests are logged.
        enabled: bool = Flag => false, shown();
        /// The level of these lines.
        level: LogLevel = choice(&LogLevel::NAMES) => LogLevel::Info;
        /// One request in so many is logged. Failed ones are always logged.
        sample: u64 = integer(1..=1_000_000) => 1;
        /// What a line has; `key` is a hash of the cache key.
        fields: Vec<Field> = list(FIELDS) => Field::NAMES.map(|(_, field)| field).to_vec();
    }
}

impl LogKeys {
    pub(super) fn settings(&self) -> telemetry::Settings {
        telemetry::Settings {
            level: self.level.value.clone(),
            format: *self.format,
        }
    }
}

impl AccessKeys {
    pub(super) fn settings(&self) -> access_log::Settings {
        access_log::Settings {
            enabled: *self.enabled,
            level: *self.level,
            sample: *self.sample,
            fields: self.fields.value.clone(),
        }
    }
}
