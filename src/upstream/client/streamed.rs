//! Passing a request on as it is, for routes that obey the origin: any method,
//! these fields, this body; the answer is handed on before its body is read.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request, Response, StatusCode, response};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout, timeout_at};

use crate::upstream::admission::limit_report::{self, LimitReport};
use crate::upstream::answer::check_head;
use crate::upstream::client::attempts::Course;
use crate::upstream::client::cause::is_settled;
use crate::upstream::client::connection::SendPath;
use crate::upstream::client::pools::{RelayConnection, RelayConnectionBody};
use crate::upstream::client::response_body;
use crate::upstream::client::send::Failed;
use crate::upstream::client::upload::Upload;
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::breaker::BreakerState;
use crate::upstream::endpoint::{Endpoint, InFlightSlot, Permit};
use crate::upstream::keys::BudgetPermit;
use crate::upstream::{Failure, RequestPriority, SearchedBody, TimedOut, Upstream};
use crate::wire::body::BodyError;

/// The body of a request on its way to the upstream.
pub type RequestBody = BoxBody<Bytes, BodyError>;

/// The body of an answer, as it comes.
pub type ResponseBody = UnsyncBoxBody<Bytes, BodyError>;

/// What is passed on of a request.
type Asked = (Method, HeaderMap, Option<Upload>);

/// No body.
pub fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// An answer as it comes, its body not yet read. No API key is in it.
pub struct StreamedAnswer {
    /// Status and fields.
    pub head: response::Parts,
    /// The body; it ends with [`KeyEchoed`](crate::upstream::KeyEchoed) where an API key is
    /// in it.
    pub body: ResponseBody,
    /// The request's permit, to be kept until the body has ended.
    pub permit: BodyPermit,
    /// The base URL of the endpoint that answers.
    pub endpoint: Arc<str>,
}

/// A request's permit while its answer's body comes: it holds the request's slot,
/// and the endpoint learns what comes of the body. One that is dropped is of an
/// answer that came well, as far as it was read. The default one has no slot, and
/// tells nothing.
#[derive(Default)]
pub struct BodyPermit {
    /// Where the endpoint has not learned yet what came of the request.
    passage: Option<Permit>,
    place: Option<InFlightSlot>,
}

impl BodyPermit {
    /// The request has been answered, whatever comes of the body.
    pub fn answered(&mut self) {
        self.end(None);
    }

    /// The body has failed so.
    pub fn failed(&mut self, failure: &Failure) {
        self.end(Some(failure));
    }

    /// Ends a trial of the endpoint: the answer has begun, and other requests wait
    /// for the result.
    fn end_trial(&mut self) {
        let passage = self.passage.as_ref();
        if passage.is_some_and(|passage| passage.endpoint().stance() != BreakerState::Closed) {
            self.answered();
        }
    }

    fn end(&mut self, failure: Option<&Failure>) {
        if let Some(passage) = self.passage.take() {
            self.place = passage.end(failure);
        }
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.answered();
    }
}

impl Upstream {
    /// Passes a request on as it is: any method, these fields, this body. What
    /// is safe and has no body is sent again where that may be of use. A body is
    /// received first, as far as it is buffered; its faults never count against
    /// the upstream. With `whole`, the answer's body is read first, up to so many
    /// bytes, unless the head is no answer of the API's ([`check_head`]); a body
    /// that fails is a failure of the request.
    ///
    /// # Errors
    /// How it failed before an answer began, or was read whole. It does so within `queue_timeout`
    /// and `timeout`, and the time that the body's limits give it to be
    /// received; a streamed body that the upstream takes slowly has
    /// `first_byte_timeout` after its last byte has moved.
    pub async fn exchange(
        &self,
        method: Method,
        target: &str,
        mut fields: HeaderMap,
        body: Option<RequestBody>,
        wish: RequestPriority,
        whole: Option<u64>,
    ) -> Result<StreamedAnswer, Failure> {
        let body = match body {
            None => None,
            Some(body) => Some(self.receive(body, &mut fields, wish).await?),
        };
        let mut course = Course::default();
        let patience = self.settings.queue_timeout;
        let mut admitted = self.admit(wish, &course, patience).await?;
        let deadline = Instant::now() + self.settings.timeout;
        self.retries().deposit(self.clock.now());
        let mut reason = SendReason::First(wish.priority);
        let is_repeatable = body.is_none() && method.is_safe();
        let mut asked = (method, fields, body);
        loop {
            let at = self.place_of(admitted.0.endpoint());
            if course.is_last_resend() {
                admitted.0.set_last_resend();
            }
            let kept = self.keep(&asked, is_repeatable);
            let passed = self.pass(admitted, target, asked, reason).await;
            let failed = match passed {
                Ok((response, mut permit, lane)) => {
                    let searched = self.search_answer(response);
                    let (head, body) = searched.inspect_err(|_echoed| self.tally.count_failed())?;
                    let body = lane.keep_for(body);
                    match self.begin(&head, body, whole, deadline).await {
                        Ok(body) => {
                            permit.end_trial();
                            self.tally.count_answered();
                            return Ok(StreamedAnswer {
                                head,
                                body,
                                permit,
                                endpoint: self.endpoints[at].name().into(),
                            });
                        }
                        Err(failure) => {
                            permit.failed(&failure);
                            Failed {
                                failure,
                                lost: None,
                            }
                        }
                    }
                }
                Err(failed) => failed,
            };
            let is_processed = failed.failure != Failure::NotProcessed;
            let next = match kept.filter(|_| is_repeatable || !is_processed) {
                Some(kept) => self
                    .goes_on(&mut course, &failed, at, wish, deadline)
                    .await
                    .map(|next| (next, kept)),
                None => None,
            };
            let is_closed = matches!(failed.failure, Failure::Excess { status: None, .. });
            let failure = match is_closed && !is_repeatable {
                // It may have been acted on: the client is not told to try again.
                true => Failure::Terminated,
                false => failed.failure,
            };
            let Some(next) = next else {
                if !matches!(failure, Failure::RequestBody(_)) {
                    self.tally.count_failed();
                }
                return Err(failure);
            };
            (admitted, asked) = next;
            reason = SendReason::Retry;
        }
    }

    /// What is sent again if it is not processed, or, where it is repeatable, fails
    /// otherwise.
    fn keep(&self, (method, fields, body): &Asked, is_repeatable: bool) -> Option<Asked> {
        // Over HTTP/1.1 no server says that it has not processed a request.
        if !is_repeatable && !self.settings.http2 {
            return None;
        }
        let body = match body {
            None => None,
            Some(body) => Some(body.copy()?),
        };
        Some((method.clone(), fields.clone(), body))
    }

    /// Reads a body whole, where it is to be.
    async fn begin(
        &self,
        head: &response::Parts,
        body: RelayConnectionBody<SearchedBody>,
        whole: Option<u64>,
        deadline: Instant,
    ) -> Result<ResponseBody, Failure> {
        let wall = self.clock.system_time();
        let is_wanted = || check_head(head.status, &head.headers, wall).is_ok();
        let Some(most) = whole.filter(|_| is_wanted()) else {
            return Ok(body.boxed_unsync());
        };
        let read = response_body::read(body, most, &self.settings.response_body);
        let read = timeout_at(deadline, read).await;
        let read = read.unwrap_or(Err(Failure::TimedOut(TimedOut::Whole)))?;
        Ok(Full::new(read)
            .map_err(|never| match never {})
            .boxed_unsync())
    }

    /// Receives a body before its request waits for a slot, and frames the
    /// request by what came.
    async fn receive(
        &self,
        body: RequestBody,
        fields: &mut HeaderMap,
        wish: RequestPriority,
    ) -> Result<Upload, Failure> {
        let declared = fields.get(CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse().ok());
        let limits = &self.settings.request_body;
        let received = self.uploads.receive(body, declared, wish.client, limits);
        let upload = received.await.map_err(Failure::RequestBody)?;
        upload.frame(fields);
        Ok(upload)
    }

    /// Sends it, and tells the passage what came of it.
    async fn pass(
        &self,
        (mut passage, grant): (Permit, BudgetPermit),
        target: &str,
        (method, fields, body): Asked,
        reason: SendReason,
    ) -> Result<(Response<Incoming>, BodyPermit, RelayConnection), Failed> {
        let progress = body.as_ref().map(|upload| upload.progress().clone());
        let lane = self.connections.lane();
        let passed = self.pass_once(
            &mut passage,
            grant,
            &lane,
            target,
            (method, fields, body),
            reason,
        );
        let is_uploading = || progress.as_ref().is_some_and(|upload| !upload.has_ended());
        let passed = passed.await.map_err(|failure| {
            match failure == Failure::Terminated && is_uploading() {
                true => failure,
                false => passage.weigh(failure, self.is_alone()),
            }
        });
        passage.overdue(passed.as_ref().err());
        let lost = passage.lost();
        let mut permit = BodyPermit::default();
        permit.place = match &passed {
            // It is passed on as it is: what it means is the client's business.
            Ok(response) if response.status().is_server_error() => passage.end_untold(),
            Err(Failure::RequestBody(fault)) => {
                self.uploads.count(*fault);
                passage.end_untold()
            }
            // A server may close the connection to refuse an upload (RFC 9112
            // §9.6): it is there, and clients choose what they upload.
            Err(Failure::Terminated) if is_uploading() => passage.end_untold(),
            // More of the answer may wait for more of the upload, and so for the
            // client.
            Ok(_) if is_uploading() => passage.end(None),
            Ok(_) => {
                permit.passage = Some(passage);
                None
            }
            Err(failure) => passage.end(Some(failure)),
        };
        match passed {
            Ok(response) => Ok((response, permit, lane)),
            Err(failure) => Err(Failed { failure, lost }),
        }
    }

    async fn pass_once(
        &self,
        passage: &mut Permit,
        mut grant: BudgetPermit,
        lane: &RelayConnection,
        target: &str,
        (method, fields, body): Asked,
        reason: SendReason,
    ) -> Result<Response<Incoming>, Failure> {
        let progress = body.as_ref().map(|upload| upload.progress().clone());
        let is_streamed = body.as_ref().is_some_and(Upload::is_streamed);
        let mut request = Request::new(body.map_or_else(no_body, Upload::into_body));
        *request.method_mut() = method;
        *request.uri_mut() = passage.endpoint().uri(target)?;
        *request.headers_mut() = fields;
        request.headers_mut().remove(&self.settings.api_key_header);
        self.add_key(&grant, request.headers_mut());
        let way = SendPath::of(&mut request, self.settings.http2);
        passage.send(way.clone());
        if is_streamed {
            passage.untimed();
        }
        grant.mark_sent(way, passage.endpoint().lates());
        self.tally.send(reason);
        let mut answered = lane.request(request);
        let response = loop {
            let head = timeout(self.settings.first_byte_timeout, &mut answered);
            let head = head.await;
            match &head {
                Ok(Ok(_)) => grant.mark_answered(),
                Ok(Err(error)) if is_settled(error, passage.has_ended()) => grant.mark_resolved(),
                Ok(Err(_)) | Err(_) => {}
            }
            let upload = progress.as_ref();
            match head {
                Ok(Ok(response)) => break response,
                Ok(Err(error)) => {
                    let fault = upload.and_then(|upload| upload.fault());
                    let Some(fault) = fault else {
                        grant.detach_client();
                        return Err(self.failure(passage, target, &error));
                    };
                    return Err(Failure::RequestBody(fault));
                }
                // A long body may take its time as long as it moves.
                Err(_elapsed) if upload.is_some_and(|upload| upload.goes_on()) => {}
                Err(_elapsed) => {
                    grant.detach_client();
                    return Err(Failure::TimedOut(TimedOut::FirstByte));
                }
            }
        };
        passage.heard(response.status());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Nothing was asked for that could be switched to.
            return Err(Failure::Protocol);
        }
        self.overhear(
            &grant,
            passage.endpoint(),
            response.status(),
            response.headers(),
        );
        Ok(response)
    }

    /// Hears what an answer says of limits that is passed on as it is. Without
    /// a key of ours the limit is perhaps the client's, and a status may be
    /// about anything.
    fn overhear(
        &self,
        grant: &BudgetPermit,
        endpoint: &Endpoint,
        status: StatusCode,
        fields: &HeaderMap,
    ) {
        if grant.header().is_some() {
            let wall = self.clock.system_time();
            let said = limit_report::read(status, fields, wall);
            self.unreadable.log(endpoint.name(), &said, |value| {
                self.keys.find_key_in(value).is_some()
            });
            let spent = said.quota_spent.is_some();
            grant.apply_report(&LimitReport {
                quota_spent: None,
                ..said
            });
            if status.is_success() && !spent {
                grant.mark_accepted();
            }
        }
    }
}
