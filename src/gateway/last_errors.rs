//! The record of answers with a 5xx status.

use http::StatusCode;
use http::uri::PathAndQuery;

use super::plain::is_plain;
use super::{Gateway, RequestRef};
use crate::meter::errors::AnsweredError;
use crate::reason::Reason;

impl Gateway {
    /// Records an answer with a 5xx status, for `/status`: the reason, and the cause as
    /// text.
    pub(super) fn record_error(
        &self,
        (context, uri): RequestRef<'_>,
        status: StatusCode,
        why: (Reason, &str),
    ) {
        let route = context.route.map(usize::from);
        let route = route.and_then(|at| self.routes.routes().get(at));
        // What a query means is the origin's matter: it may be secret.
        let is_secret = route.is_some_and(is_plain) && uri.query().is_some();
        let target = uri.path_and_query();
        let target = target.map_or("", |target| match is_secret {
            true => target.path(),
            false => PathAndQuery::as_str(target),
        });
        let at = (self.clock.now(), context.request_id, context.client());
        let mut error = AnsweredError::new(at, &context.method, target, status, why);
        error.is_cut |= is_secret;
        self.meter().totals.errors.record(error);
    }
}
