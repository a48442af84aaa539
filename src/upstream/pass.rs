//! Passing a request on as it is, for routes that obey the origin: any method,
//! these fields, this body; the answer is handed on before its body is read.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, response};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::again::Course;
use super::endpoint::{Passage, Place};
use super::keys::Grant;
use super::reported::{self, Reported};
use super::tally::Reason;
use super::{Failure, TimedOut, Upstream, Wish, cause};
use crate::wire::body::BodyError;

/// The body of a request on its way to the upstream.
pub type RequestBody = BoxBody<Bytes, BodyError>;

/// The body of an answer, as it comes.
pub type ResponseBody = UnsyncBoxBody<Bytes, BodyError>;

/// No body.
pub fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// An answer as it comes, its body not yet read. No API key is in it.
pub struct Exchange {
    /// Status and fields.
    pub head: response::Parts,
    /// The body; it ends with [`KeyEchoed`](super::KeyEchoed) where an API key is
    /// in it.
    pub body: ResponseBody,
    /// The request's place among those under way, to be kept until the body
    /// has ended.
    pub place: Box<dyn Any + Send>,
}

impl Upstream {
    /// Passes a request on as it is: any method, these fields, this body. What
    /// is safe and has no body is sent again where that may be of use.
    ///
    /// # Errors
    /// How it failed before an answer began. It does so within `queue_timeout`
    /// and `timeout`, but for a body that takes longer to be sent: then within
    /// `first_byte_timeout` after its last byte has moved.
    pub async fn exchange(
        &self,
        method: Method,
        target: &str,
        fields: HeaderMap,
        body: Option<RequestBody>,
        wish: Wish,
    ) -> Result<Exchange, Failure> {
        let mut course = Course::default();
        let patience = self.settings.queue_timeout;
        let mut admitted = self.admit(wish, &course, patience).await?;
        let deadline = Instant::now() + self.settings.timeout;
        self.retries().deposit(self.clock.now());
        let mut reason = Reason::Wished(wish.priority);
        let again = (body.is_none() && method.is_safe()).then(|| (method.clone(), fields.clone()));
        let mut asked = (method, fields, body);
        loop {
            let at = self.place_of(admitted.0.endpoint());
            let passed = self.pass(admitted, target, asked, reason).await;
            let failure = match passed {
                Ok((response, place)) => {
                    let searched = self.search_answer(response);
                    let (head, body) = searched.inspect_err(|_echoed| self.tally.count_failed())?;
                    self.tally.count_answered();
                    return Ok(Exchange {
                        head,
                        body: body.boxed_unsync(),
                        place: Box::new(place),
                    });
                }
                Err(failure) => failure,
            };
            let next = match &again {
                Some((method, fields)) => self
                    .goes_on(&mut course, &failure, at, wish, deadline)
                    .await
                    .map(|next| (next, (method.clone(), fields.clone(), None))),
                None => None,
            };
            let Some(next) = next else {
                self.tally.count_failed();
                return Err(failure);
            };
            (admitted, asked) = next;
            reason = Reason::Retry;
        }
    }

    /// Sends it, and tells the passage what came of it.
    async fn pass(
        &self,
        (mut passage, grant): (Passage, Grant),
        target: &str,
        (method, fields, body): (Method, HeaderMap, Option<RequestBody>),
        reason: Reason,
    ) -> Result<(Response<Incoming>, Option<Place>), Failure> {
        let passed = self.pass_once(&mut passage, grant, target, method, fields, body, reason);
        let passed = passed.await;
        let place = match &passed {
            // It is passed on as it is: what it means is the client's business.
            Ok(response) if response.status().is_server_error() => passage.end_untold(),
            Ok(_) => passage.end(None),
            Err(failure) => passage.end(Some(failure)),
        };
        Ok((passed?, place))
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "they are the parts of one request"
    )]
    async fn pass_once(
        &self,
        passage: &mut Passage,
        mut grant: Grant,
        target: &str,
        method: Method,
        fields: HeaderMap,
        body: Option<RequestBody>,
        reason: Reason,
    ) -> Result<Response<Incoming>, Failure> {
        let moved = Arc::new(AtomicBool::new(false));
        let mut request = Request::new(match body {
            None => no_body(),
            Some(body) => {
                let moved = moved.clone();
                let watched = body.map_frame(move |frame| {
                    moved.store(true, Relaxed);
                    frame
                });
                watched.boxed()
            }
        });
        *request.method_mut() = method;
        *request.uri_mut() = passage.endpoint().uri(target)?;
        *request.headers_mut() = fields;
        request.headers_mut().remove(&self.settings.api_key_header);
        self.add_key(&grant, request.headers_mut());
        passage.send();
        grant.send();
        self.tally.send(reason);
        let mut answered = self.client.request(request);
        let response = loop {
            let head = timeout(self.settings.first_byte_timeout, &mut answered);
            let head = head.await;
            if head.is_ok() {
                grant.settle();
            }
            match head {
                Ok(Ok(response)) => break response,
                Ok(Err(error)) => return Err(cause::failure(target, &error)),
                // A long body may take its time as long as it moves.
                Err(_elapsed) if moved.swap(false, Relaxed) => {}
                Err(_elapsed) => return Err(Failure::TimedOut(TimedOut::FirstByte)),
            }
        };
        passage.heard();
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Nothing was asked for that could be switched to.
            return Err(Failure::Protocol);
        }
        self.overhear(&grant, response.status(), response.headers());
        Ok(response)
    }

    /// Hears what an answer says of limits that is passed on as it is. Without
    /// a key of ours the limit is perhaps the client's, and a status may be
    /// about anything.
    fn overhear(&self, grant: &Grant, status: StatusCode, fields: &HeaderMap) {
        if grant.header().is_some() {
            let wall = self.clock.wall(self.clock.now());
            let said = reported::read(status, fields, wall);
            let spent = said.quota_spent.is_some();
            grant.hear(&Reported {
                quota_spent: None,
                ..said
            });
            if status.is_success() && !spent {
                grant.accepted();
            }
        }
    }
}
