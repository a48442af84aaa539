//! Logs fields that report limits and cannot be parsed: each field of each endpoint
//! once, and not for each response.

use std::sync::{Mutex, MutexGuard};

use http::HeaderName;

use super::limit_report::{LimitReport, UnreadableField};
use crate::sync::lock;

/// At most this many fields are logged until the configuration is reloaded.
const MAX_LOGGED: usize = 64;
/// At most this many bytes of a value are logged.
const MAX_VALUE: usize = 80;

/// The unparsable fields that were logged since the configuration was loaded, with
/// the name of their endpoint.
#[derive(Debug, Default)]
pub(crate) struct UnreadableFields(Mutex<Vec<(Box<str>, HeaderName)>>);

impl UnreadableFields {
    /// Logs the unparsable fields of an endpoint's report that were not logged yet.
    /// Values for which `has_key` holds are withheld.
    pub(crate) fn log(
        &self,
        endpoint: &str,
        report: &LimitReport,
        has_key: impl Fn(&[u8]) -> bool,
    ) {
        for UnreadableField { field, value } in &report.unreadable {
            if !self.add(endpoint, field) {
                continue;
            }
            let value = match has_key(value.as_bytes()) {
                true => "(withheld: it contains an API key)".to_owned(),
                false => {
                    let shown = &value.as_bytes()[..value.len().min(MAX_VALUE)];
                    shown.escape_ascii().to_string()
                }
            };
            tracing::warn!(
                endpoint,
                field = field.as_str(),
                value,
                "the upstream reports a limit that cannot be parsed: in a 429 or 503 without another limit it counts as a pause of ten seconds, otherwise it is ignored; the configured budget applies. This is logged again only after a reload"
            );
        }
    }

    /// Records a field of an endpoint; returns whether it was not recorded before.
    fn add(&self, endpoint: &str, field: &HeaderName) -> bool {
        let mut logged = self.logged();
        let is_same = |(at, name): &(Box<str>, HeaderName)| **at == *endpoint && name == field;
        let is_new = logged.len() < MAX_LOGGED && !logged.iter().any(is_same);
        if is_new {
            logged.push((endpoint.into(), field.clone()));
        }
        is_new
    }

    fn logged(&self) -> MutexGuard<'_, Vec<(Box<str>, HeaderName)>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_of_each_endpoint_is_logged_once() {
        let fields = UnreadableFields::default();
        let (one, other) = (
            HeaderName::from_static("ratelimit"),
            HeaderName::from_static("retry-after"),
        );
        assert!(fields.add("http://a", &one));
        assert!(!fields.add("http://a", &one));
        assert!(fields.add("http://a", &other));
        assert!(fields.add("http://b", &one));
        for number in 0..2 * MAX_LOGGED {
            fields.add(&format!("http://{number}"), &one);
        }
        assert_eq!(fields.logged().len(), MAX_LOGGED);
    }
}
