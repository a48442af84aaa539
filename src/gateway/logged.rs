//! The line of a request in the access log.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::{HeaderMap, Response, Uri};
use hyper::body::Body as _;

use super::plain::is_plain;
use super::{Gateway, RequestContext, Session};
use crate::access_log::{AccessLog, LineDecision, LogEntry, LoggedHead};
use crate::clock::Moment;
use crate::meter::RequestKind;
use crate::wire::Body;

/// The head of a request as far as a line needs it.
pub(super) enum HeadToLog<'a> {
    /// It is at hand: memory has answered.
    Of(&'a Uri, &'a HeaderMap),
    /// It was kept in the context when the request left memory.
    Kept,
}

/// What came of a request, and when.
pub(super) struct Finished {
    pub(super) kind: RequestKind,
    pub(super) now: Moment,
    pub(super) took: Duration,
    pub(super) upstream_took: Option<Duration>,
}

impl Gateway {
    /// Keeps what the access log needs of the head of a request that leaves memory.
    pub(super) fn keep_head(&self, context: &mut RequestContext, uri: &Uri, fields: &HeaderMap) {
        if let Some(log) = &self.records.access_log {
            context.logged = Some(Box::new(log.head(&context.method, uri, fields)));
        }
    }

    /// Writes the line of a request, if it has one. A request that memory answers and that
    /// sampling leaves out costs no more than that decision.
    #[inline]
    pub(super) fn log(
        &self,
        log: &AccessLog,
        session: &Session,
        context: &RequestContext,
        head: HeadToLog<'_>,
        finished: &Finished,
        response: &Response<Body>,
    ) {
        let Finished {
            kind, now, took, ..
        } = *finished;
        match log.wants(kind, response.status(), took, context.client(), now) {
            LineDecision::Line => self.write_line(log, session, context, head, finished, response),
            LineDecision::No => {}
            LineDecision::Suppressed => {
                let suppressed = &self.meter().totals.log_lines_suppressed;
                suppressed.fetch_add(1, Relaxed);
            }
        }
    }

    #[inline(never)]
    fn write_line(
        &self,
        log: &AccessLog,
        session: &Session,
        context: &RequestContext,
        head: HeadToLog<'_>,
        finished: &Finished,
        response: &Response<Body>,
    ) {
        let made: LoggedHead;
        let head = match (head, &context.logged) {
            (HeadToLog::Of(uri, fields), _) => {
                made = log.head(&context.method, uri, fields);
                &made
            }
            (HeadToLog::Kept, Some(kept)) => kept,
            // Requests that leave memory have theirs kept.
            (HeadToLog::Kept, None) => return,
        };
        let mut routes = self.routes.routes().iter();
        let route = context
            .route
            .and_then(|place| routes.nth(usize::from(place)));
        log.write(&LogEntry {
            peer: session.peer,
            client: context.label(&self.clients),
            method: &context.method,
            version: context.version,
            route: route.map(|route| &*route.name),
            is_plain: route.is_some_and(is_plain),
            head,
            key: context.key_hash,
            at: self.clock.wall(finished.now),
            status: response.status().as_u16(),
            bytes: response.body().size_hint().exact().unwrap_or(0),
            duration: finished.took,
            kind: finished.kind,
            upstream: finished.upstream_took,
            request_id: context.request_id,
        });
    }
}
