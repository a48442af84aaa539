//! The record of answers with a 5xx status.

use http::uri::PathAndQuery;
use http::{HeaderMap, StatusCode};

use super::plain::is_plain;
use super::{Gateway, RequestRef};
use crate::access_log::shown_line;
use crate::meter::errors::AnsweredError;
use crate::reason::Reason;
use crate::wire::head::{is_replacement, refused_line};

impl Gateway {
    /// Records an answer with a 5xx status, for `/status`: the reason, and the cause as
    /// text. `fields` are the request's.
    pub(super) fn record_error(
        &self,
        (context, uri): RequestRef<'_>,
        fields: &HeaderMap,
        status: StatusCode,
        why: (Reason, &str),
    ) {
        let at = (self.clock.now(), context.request_id, context.client());
        let errors = &self.meter().totals.errors;
        if is_replacement(&context.method, uri) {
            let line = refused_line(fields).map(shown_line);
            let line = line.as_deref().unwrap_or_default();
            return errors.record(AnsweredError::new(at, None, line, status, why));
        }
        let route = context.route.map(usize::from);
        let route = route.and_then(|at| self.routes.routes().get(at));
        // What a query means is the origin's matter: it may be secret.
        let is_secret = route.is_some_and(is_plain) && uri.query().is_some();
        let target = uri.path_and_query();
        let target = target.map_or("", |target| match is_secret {
            true => target.path(),
            false => PathAndQuery::as_str(target),
        });
        let mut error = AnsweredError::new(at, Some(&context.method), target, status, why);
        error.is_cut |= is_secret;
        errors.record(error);
    }
}
