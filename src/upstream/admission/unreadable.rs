//! Fields that report limits and cannot be read: each is logged once for each
//! endpoint, and not for each response.

use std::sync::{Mutex, MutexGuard, PoisonError};

use http::HeaderName;

use super::limit_report::{LimitReport, UnreadableField};
use crate::upstream::Upstream;
use crate::upstream::endpoint::Endpoint;

/// So many are logged at the most, until the configuration is loaded anew.
const MOST: usize = 64;
/// So many bytes of a value are logged.
const MOST_VALUE: usize = 80;

/// Which fields could not be read at which endpoints, as far as that has been
/// logged since the configuration was loaded.
#[derive(Debug, Default)]
pub(crate) struct UnreadableFields(Mutex<Vec<(Box<str>, HeaderName)>>);

impl UnreadableFields {
    /// Whether it is news that a field of an endpoint's cannot be read.
    fn add(&self, endpoint: &str, field: &HeaderName) -> bool {
        let mut logged = self.logged();
        let is_it = |(at, name): &(Box<str>, HeaderName)| **at == *endpoint && name == field;
        let is_news = logged.len() < MOST && !logged.iter().any(is_it);
        if is_news {
            logged.push((endpoint.into(), field.clone()));
        }
        is_news
    }

    fn logged(&self) -> MutexGuard<'_, Vec<(Box<str>, HeaderName)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upstream {
    /// Logs what an endpoint reports of limits and cannot be read, where that is
    /// news.
    pub(crate) fn log_unreadable(&self, endpoint: &Endpoint, reported: &LimitReport) {
        for UnreadableField { field, value } in &reported.unreadable {
            if !self.unreadable.add(endpoint.name(), field) {
                continue;
            }
            let value = match self.keys.find_key_in(value.as_bytes()) {
                Some(_key) => "(withheld: an API key is in it)".to_owned(),
                None => {
                    let shown = value.as_bytes().iter().take(MOST_VALUE);
                    shown
                        .copied()
                        .collect::<Vec<_>>()
                        .escape_ascii()
                        .to_string()
                }
            };
            tracing::warn!(
                upstream = endpoint.name(),
                field = field.as_str(),
                value,
                "the upstream reports a limit that cannot be read: with a 429 or 503 that says nothing else it is taken as a pause of ten seconds, else it is ignored; the configured budget holds. This is logged again only after a reload"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_of_each_endpoint_is_news_once() {
        let fields = UnreadableFields::default();
        let (one, other) = (
            HeaderName::from_static("ratelimit"),
            HeaderName::from_static("retry-after"),
        );
        assert!(fields.add("http://a", &one));
        assert!(!fields.add("http://a", &one));
        assert!(fields.add("http://a", &other));
        assert!(fields.add("http://b", &one));
        for number in 0..2 * MOST {
            fields.add(&format!("http://{number}"), &one);
        }
        assert_eq!(fields.logged().len(), MOST);
    }
}
