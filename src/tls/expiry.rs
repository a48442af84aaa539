//! Certificates that expire soon, in the log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::certificate::{Certificate, FilesDigest};
use crate::cache::date as http_date;
use crate::sync::lock;

/// The numbers of days before the end at which the log has a line; 0 is the end.
const STAGES: [i64; 4] = [0, 1, 7, 30];
const DAY: Duration = Duration::from_hours(24);

/// Which notices the log has had.
#[derive(Default)]
pub(super) struct ExpiryNotices(Mutex<HashMap<FilesDigest, i64>>);

impl ExpiryNotices {
    /// Logs each certificate that has come to another stage since the last time.
    pub(super) fn log(&self, certificates: &[Arc<Certificate>], now: SystemTime) {
        for (certificate, stage) in self.due(certificates, now) {
            let names = certificate.names.join(", ");
            let not_after = date(certificate.not_after);
            match stage {
                0 => tracing::error!(names, not_after, "a certificate in use has expired"),
                1 => tracing::error!(names, not_after, "a certificate expires within a day"),
                days => {
                    tracing::warn!(names, not_after, "a certificate expires within {days} days");
                }
            }
        }
    }

    /// The certificates that the log needs a line for, with their stage. Forgets those
    /// that are no longer in use.
    fn due<'c>(
        &self,
        certificates: &'c [Arc<Certificate>],
        now: SystemTime,
    ) -> Vec<(&'c Certificate, i64)> {
        let mut noticed = lock(&self.0);
        let (mut due, mut next) = (Vec::new(), HashMap::new());
        for certificate in certificates {
            let Some(stage) = stage(certificate.not_after, now) else {
                continue;
            };
            let before = noticed.get(&certificate.digest);
            let is_new = next.insert(certificate.digest, stage).is_none();
            if is_new && before.is_none_or(|before| stage < *before) {
                due.push((&**certificate, stage));
            }
        }
        *noticed = next;
        due
    }
}

/// The stage of a certificate; `None` while there is time.
fn stage(not_after: SystemTime, now: SystemTime) -> Option<i64> {
    let Ok(left) = not_after.duration_since(now) else {
        return Some(0);
    };
    let within = |days: &i64| left <= DAY * u32::try_from(*days).unwrap_or(0);
    STAGES.into_iter().find(within)
}

/// Whole days until a time; negative after it.
pub(super) fn days_left(not_after: SystemTime, now: SystemTime) -> i64 {
    let days = |time: Duration| i64::try_from(time.as_secs() / DAY.as_secs()).unwrap_or(i64::MAX);
    match not_after.duration_since(now) {
        Ok(left) => days(left),
        Err(past) => -1 - days(past.duration()),
    }
}

/// A time as HTTP writes it.
pub(super) fn date(time: SystemTime) -> String {
    let value = http_date::value(time);
    value.to_str().unwrap_or_default().to_owned()
}
