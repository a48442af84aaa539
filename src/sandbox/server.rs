//! The server: sockets, time, and the order of faults, gate and model for a request.
//!
//! Called by `Sandbox::serve`. Only this module of the sandbox reads a clock (tokio's). A request's answer is decided
//! before its latency begins, as a database query sees the chain before its reply is sent; an answer can therefore be
//! older than the chain by its latency. Invariants: no lock is held across an await; all tasks end with `serve`. HTTP/2,
//! TLS and connection limits are not implemented.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::answer::Answer;
use super::api::{Api, Route};
use super::control;
use super::faults::FaultKind;
use super::journal::JournalEntry;
use super::payload::Payload;
use super::{Sandbox, gate, target};

/// How long the reference keeps idle connections.
const KEEP_ALIVE: Duration = Duration::from_secs(72);

/// The service's error that closes the connection without an answer.
#[derive(Debug)]
struct CloseConnection;

impl fmt::Display for CloseConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("closed on purpose")
    }
}

impl std::error::Error for CloseConnection {}

/// Serves until `stop` resolves, then drops every connection.
pub(super) async fn serve(
    sandbox: Sandbox,
    api: Api,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    let mut connections = JoinSet::new();
    let started = *sandbox.inner.started.get_or_init(Instant::now);
    let mut blocks = pin!(add_timed_blocks(&sandbox));
    loop {
        tokio::select! {
            biased;
            () = &mut stop => return,
            () = &mut blocks => {}
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(sandbox.clone(), api, stream, started));
                }
                Err(error) => {
                    // Mostly a lack of file descriptors: wait instead of spinning.
                    tracing::warn!(%error, "the sandbox cannot accept");
                    sleep(Duration::from_millis(20)).await;
                }
            },
        }
    }
}

/// Adds blocks at the interval of the settings; never returns. One server of a sandbox does so at a time, and another
/// continues when it stops.
async fn add_timed_blocks(sandbox: &Sandbox) {
    let Some(every) = sandbox.inner.settings.block_every else {
        return std::future::pending().await;
    };
    let every = every.max(Duration::from_millis(1));
    let _only_timer = sandbox.inner.block_timer.lock().await;
    let mut blocks = interval_at(Instant::now() + every, every);
    blocks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        blocks.tick().await;
        sandbox.add_timed_block();
    }
}

async fn connection(sandbox: Sandbox, api: Api, stream: TcpStream, started: Instant) {
    // Otherwise a body in pieces waits for acknowledgements.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| respond(&sandbox, api, request, started));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(KEEP_ALIVE);
    if let Err(error) = builder
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        // Usual here: clients disconnect, and faults close connections.
        tracing::trace!(%error, "a connection of the sandbox ended");
    }
}

async fn respond(
    sandbox: &Sandbox,
    api: Api,
    request: Request<Incoming>,
    started: Instant,
) -> Result<Response<Payload>, CloseConnection> {
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str());
    if control::is_control(target) {
        let (status, body) = control::answer(sandbox, api, request.method(), target);
        let answer =
            Answer::provider(status, "").with_body(super::answer::JSON, format!("{body}\n"));
        return Ok(response(&answer, Payload::whole(answer.body.clone())));
    }
    let now = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (path, _) = target::split(target);
    let route = Route::of(api, path).unwrap_or(Route::Unknown);
    let number = sandbox.count_request(api, &route, now);
    let settings = &sandbox.inner.settings;
    let is_hit = |fault, chance| settings.is_faulty(fault, chance, number);
    let fault = sandbox.faults().take(api, path, is_hit);
    let record = |status, latency| {
        sandbox.count_answer(api, status);
        sandbox.journal().record(JournalEntry {
            number,
            at: now,
            api,
            method: request.method().clone(),
            target: target.to_owned(),
            status,
            fault: fault.as_ref().map(FaultKind::name),
            latency,
            has_key: request.headers().contains_key("x-api-key"),
        });
    };
    if fault == Some(FaultKind::Close) {
        record(None, Duration::ZERO);
        return Err(CloseConnection);
    }
    let replacement = fault.as_ref().and_then(|fault| fault.answer(target));
    let answer = match replacement {
        Some(answer) => answer.for_method(request.method()),
        None => right_answer(sandbox, api, &request, target, number, now),
    };
    let items = u32::try_from(answer.items).unwrap_or(u32::MAX);
    let mut wait =
        (settings.latency_of(number)).saturating_add(settings.item_cost.saturating_mul(items));
    if let Some(FaultKind::Stall(delay)) = fault {
        wait = wait.saturating_add(delay);
    }
    if !wait.is_zero() {
        sleep(wait).await;
    }
    let bodiless =
        request.method() == http::Method::HEAD || answer.status == StatusCode::NOT_MODIFIED;
    if fault == Some(FaultKind::Truncate) && (bodiless || answer.body.is_empty()) {
        // Without a body to truncate, there is no answer.
        record(None, wait);
        return Err(CloseConnection);
    }
    record(Some(answer.status), wait);
    let payload = match (&fault, settings.bandwidth) {
        _ if bodiless => Payload::whole(answer.body.clone()),
        (Some(FaultKind::Truncate), _) => Payload::truncated(&answer.body),
        (Some(FaultKind::Drip(pause)), _) => Payload::drip(&answer.body, *pause),
        (Some(FaultKind::Oversize { bytes, declared }), _) => Payload::oversize(*bytes, *declared),
        (_, Some(bandwidth)) => Payload::paced(&answer.body, bandwidth),
        (_, None) => Payload::whole(answer.body.clone()),
    };
    Ok(response(&answer, payload))
}

/// The answer without a fault: the gate's refusal, a random error, or the model's answer.
fn right_answer(
    sandbox: &Sandbox,
    api: Api,
    request: &Request<Incoming>,
    target: &str,
    number: u64,
    now: u64,
) -> Answer {
    let required = sandbox.inner.settings.require_key.as_deref();
    let checked = gate::check(
        required,
        sandbox.limiter(api).as_mut(),
        request.method(),
        request.headers(),
        now,
    );
    let decision = match checked {
        Ok(decision) => decision,
        Err(refusal) => return *refusal,
    };
    let mut answer = sandbox
        .model()
        .answer(api, request.method(), target, request.headers());
    if answer.database && sandbox.inner.settings.is_error(number) {
        // In half of the cases the query for the tag succeeds, and the answer has one.
        answer = sandbox
            .model()
            .timed_out(target, number.is_multiple_of(2))
            .for_method(request.method());
    }
    if let Some(decision) = decision {
        gate::add_limit_fields(&mut answer, decision);
    }
    answer
}

fn response(answer: &Answer, payload: Payload) -> Response<Payload> {
    let mut response = Response::new(payload);
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers.clone();
    response
}

#[cfg(test)]
mod tests;
