//! A client connection, what the gateway knows of a request on it, and the response,
//! which may come later.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use http::{HeaderMap, Method, Request, Response, Uri, Version};

use super::Gateway;
use super::clients::{ClientPolicy, IdentifiedClient};
use crate::clock::Moment;
use crate::connections::Activity;
use crate::identify::Client;
use crate::limit::RequestAllowance;
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::respond::ResponseContext;
use crate::route::HeaderMode;
use crate::upstream::{Priority, RequestPriority};
use crate::wire::Body;
use crate::wire::request_id::RequestId;

/// A client connection.
pub struct Session {
    /// The address of its other end.
    pub(super) peer: IpAddr,
    /// Its number, which no other connection has.
    pub(super) connection: u64,
    requests: AtomicU64,
    pub(crate) activity: Arc<Activity>,
}

impl Session {
    /// A connection without requests yet.
    pub fn new(peer: IpAddr, connection: u64, activity: Arc<Activity>) -> Self {
        Self {
            peer,
            connection,
            requests: AtomicU64::new(0),
            activity,
        }
    }

    /// Counts a request; returns how many there were before it.
    fn count_request(&self) -> u64 {
        // Requests of a connection come one after another, so no locked
        // instruction is needed.
        let nth = self.requests.load(Relaxed);
        self.requests.store(nth + 1, Relaxed);
        nth
    }
}

/// What is known of a request.
pub(super) struct RequestContext {
    /// When its last byte came.
    pub(super) began: Moment,
    pub(super) from: IdentifiedClient,
    pub(super) method: Method,
    pub(super) version: Version,
    pub(super) request_id: RequestId,
    /// Its route's position in the table.
    pub(super) route: Option<u16>,
    pub(super) permit: Option<RequestAllowance>,
}

impl RequestContext {
    /// A request of a connection, which it counts. A client token is removed from the
    /// request's fields.
    #[inline]
    pub(super) fn new<B>(gateway: &Gateway, session: &Session, request: &mut Request<B>) -> Self {
        let fields = request.headers_mut();
        let nth = session.count_request();
        if nth == 0 {
            gateway.check_proxy(session.peer, fields);
        }
        let clients = &gateway.clients;
        Self {
            began: session.activity.last(),
            from: clients.identify(session.peer, fields, &gateway.clock),
            method: request.method().clone(),
            version: request.version(),
            request_id: gateway.request_id(session.connection, nth),
            route: None,
            permit: None,
        }
    }

    /// All that its response and the records of it need.
    #[inline]
    pub(super) fn with<'a>(
        &'a self,
        session: &'a Session,
        uri: &'a Uri,
        fields: &'a HeaderMap,
    ) -> RequestRef<'a> {
        RequestRef {
            session,
            context: self,
            uri,
            fields,
        }
    }

    /// The client that it counts against.
    pub(super) fn client(&self) -> Client {
        self.from.client
    }

    /// The priority of an upstream request that it causes.
    pub(super) fn priority(&self, priority: Priority) -> RequestPriority {
        RequestPriority {
            client: Some(self.client()),
            request_id: Some(self.request_id),
            ..RequestPriority::own(priority)
        }
    }

    /// What rendering its response needs of it. `fields` are the request's.
    #[inline]
    pub(super) fn for_response<'a>(
        &'a self,
        clients: &'a ClientPolicy,
        fields: &'a HeaderMap,
    ) -> ResponseContext<'a> {
        ResponseContext {
            method: &self.method,
            fields,
            headers: HeaderMode::Typed,
            request_id: self.request_id,
            permit: self.permit,
            token: clients.token_client(&self.from),
            date: None,
        }
    }
}

/// A request, without its body.
#[derive(Clone, Copy)]
pub(super) struct RequestRef<'a> {
    pub(super) session: &'a Session,
    pub(super) context: &'a RequestContext,
    pub(super) uri: &'a Uri,
    pub(super) fields: &'a HeaderMap,
}

/// A response, at once or later. It never fails, since hyper closes the
/// connection without a response on an error.
pub enum ResponseFuture {
    /// The response; `None` after it was taken.
    Done(Option<Response<Body>>),
    /// The response follows.
    Waiting(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
}

impl Future for ResponseFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Done(response) => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                // A future is not polled again after it was ready.
                None => Poll::Pending,
            },
            Self::Waiting(response) => response.as_mut().poll(cx).map(Ok),
        }
    }
}

/// Refuses a target that is not in origin form (RFC 9112 §3.2.1).
#[inline]
pub(super) fn check_target(uri: &Uri) -> Result<(), Refusal> {
    match uri.authority().is_none() && uri.path().starts_with('/') {
        true => Ok(()),
        false => Err(Reason::BadTarget.into()),
    }
}
