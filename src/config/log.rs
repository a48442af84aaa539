//! `[log]`: what is logged, and how.

use std::time::Duration;

use super::containers::{list, table};
use super::key::keys;
use super::kinds::{
    Choice, DAY, Flag, MILLI, ParsedText, choice, integer, seconds, text, time, when,
};
use crate::access_log::{self, AccessFormat, Field, LogLevel};
use crate::telemetry::{self, Format};

const FILTER: ParsedText<String> = text(
    telemetry::FILTER,
    // Levels in any case, each after the target that it is for, if any.
    "^(([^,=\\s]+=)?([Ee][Rr][Rr][Oo][Rr]|[Ww][Aa][Rr][Nn]|[Ii][Nn][Ff][Oo]|[Dd][Ee][Bb][Uu][Gg]|[Tt][Rr][Aa][Cc][Ee]|[Oo][Ff][Ff])(,|$))+$",
    |text| when(telemetry::is_filter(text), text),
);

const FIELDS: Choice<Field> = choice(&Field::NAMES);

keys! {
    /// Logs, on standard error.
    pub(super) struct LogKeys {
        /// What is logged: error, warn, info, debug, trace or off; or a list such as
        /// "info,ordgate::upstream=debug". Release builds have no messages of level trace.
        /// A level without a target is that of ordgate's own messages: of the libraries, only
        /// errors are logged, unless the list names them, as in "info,h2=debug,rustls=debug".
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
        /// "log" writes them with the log; "combined" writes them to standard output, in
        /// the format of the same name of Apache and nginx, with the query if fields has it.
        format: AccessFormat = choice(&AccessFormat::NAMES) => AccessFormat::Log;
        /// The level of these lines.
        level: LogLevel = choice(&LogLevel::NAMES) => LogLevel::Info;
        /// One of so many requests that memory answers is logged. Those that fail (5xx), are
        /// slow, or leave memory are always logged. Unless this is 1, other refusals (4xx)
        /// have 20 lines a second at most for one client, and 1000 for all.
        sample: u64 = integer(1..=1_000_000) => 1;
        /// Requests that take this long are slow.
        slow: Duration = time(MILLI, DAY) => seconds(1);
        /// What a line has; `key` is a hash of the cache key, and `duration` and `upstream`
        /// are in microseconds. Queries of plain routes (headers = "all", or mode "respect")
        /// may be secret, so they need `plain_query`. A head that is refused before it is
        /// parsed has `request_line` in place of method and path: its beginning, without a
        /// query.
        fields: Vec<Field> = list(FIELDS) => Field::default_fields();
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
            format: *self.format,
            slow: *self.slow,
            fields: self.fields.value.clone(),
        }
    }
}
