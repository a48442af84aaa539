//! The server: sockets, time, and the order in which a request meets faults, gate and model.
//!
//! Called through `Sandbox::serve`. This is the one place of the sandbox that reads a clock (tokio's). A request's
//! answer is decided before its latency is waited for, as a query sees the chain before its reply is sent; so an answer
//! may be older than the chain by the latency. Invariants: no lock is held across an await; all tasks end with
//! `serve`. Deliberately absent: HTTP/2, TLS, limits on connections.

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
use super::payload::Payload;
use super::{Sandbox, gate, target};

/// The reference keeps idle connections for so long.
const KEEP_ALIVE: Duration = Duration::from_secs(72);

/// What a service says to have its connection closed without an answer.
#[derive(Debug)]
struct Hangup;

impl fmt::Display for Hangup {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("closed to order")
    }
}

impl std::error::Error for Hangup {}

/// Serves until `stop` resolves; then every connection is dropped at once.
pub(super) async fn serve(
    sandbox: Sandbox,
    api: Api,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    let mut connections = JoinSet::new();
    let epoch = *sandbox.inner.epoch.get_or_init(Instant::now);
    let mut blocks = pin!(bring_blocks(&sandbox));
    loop {
        tokio::select! {
            biased;
            () = &mut stop => return,
            () = &mut blocks => {}
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(sandbox.clone(), api, stream, epoch));
                }
                Err(error) => {
                    // Out of descriptors, mostly: trying again at once would only spin.
                    tracing::warn!(%error, "the sandbox cannot accept");
                    sleep(Duration::from_millis(20)).await;
                }
            },
        }
    }
}

/// Lets blocks arrive where the settings say so; never returns. Of several servers of a sandbox one does it, and another
/// takes over when that one stops.
async fn bring_blocks(sandbox: &Sandbox) {
    let Some(every) = sandbox.inner.settings.block_every else {
        return std::future::pending().await;
    };
    let every = every.max(Duration::from_millis(1));
    let _alone = sandbox.inner.bringing.lock().await;
    let mut blocks = interval_at(Instant::now() + every, every);
    blocks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        blocks.tick().await;
        sandbox.next_block();
    }
}

async fn connection(sandbox: Sandbox, api: Api, stream: TcpStream, epoch: Instant) {
    // Without this a body in pieces waits for acknowledgements.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| respond(&sandbox, api, request, epoch));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(KEEP_ALIVE);
    if let Err(error) = builder
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        // Clients leave and faults close connections: both are daily business here.
        tracing::trace!(%error, "a connection of the sandbox ended");
    }
}

async fn respond(
    sandbox: &Sandbox,
    api: Api,
    request: Request<Incoming>,
    epoch: Instant,
) -> Result<Response<Payload>, Hangup> {
    let target = request
        .uri()
        .path_and_query()
        .map_or("/", |target| target.as_str());
    if control::is_control(target) {
        let (status, body) = control::answer(sandbox, api, request.method(), target);
        let answer = Answer::provider(status, "").with_body(super::answer::JSON, body.to_string());
        return Ok(response(&answer, Payload::whole(answer.body.clone())));
    }
    let now = u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (path, _) = target::split(target);
    let route = Route::of(api, path).unwrap_or(Route::Unknown);
    let number = sandbox.arrive(api, &route, now);
    let fault = sandbox.faults().take(api, path);
    if fault == Some(FaultKind::Close) {
        sandbox.leave(api, None);
        return Err(Hangup);
    }
    let settings = &sandbox.inner.settings;
    let instead = fault.as_ref().and_then(|fault| fault.answer(target));
    let answer = match instead {
        Some(answer) => answer.for_method(request.method()),
        None => right_answer(sandbox, api, &request, target, number, now),
    };
    let items = u32::try_from(answer.items).unwrap_or(u32::MAX);
    let mut wait = settings
        .latency
        .saturating_add(settings.item_cost.saturating_mul(items));
    if let Some(FaultKind::Stall(delay)) = fault {
        wait = wait.saturating_add(delay);
    }
    if !wait.is_zero() {
        sleep(wait).await;
    }
    let bodiless =
        request.method() == http::Method::HEAD || answer.status == StatusCode::NOT_MODIFIED;
    if fault == Some(FaultKind::Truncate) && (bodiless || answer.body.is_empty()) {
        // There is no body to break off, so breaking off means no answer.
        sandbox.leave(api, None);
        return Err(Hangup);
    }
    sandbox.leave(api, Some(answer.status));
    let payload = match fault {
        _ if bodiless => Payload::whole(answer.body.clone()),
        Some(FaultKind::Truncate) => Payload::truncated(&answer.body),
        Some(FaultKind::Drip(pause)) => Payload::drip(&answer.body, pause),
        Some(FaultKind::Oversize { bytes, declared }) => Payload::oversize(bytes, declared),
        _ => Payload::whole(answer.body.clone()),
    };
    Ok(response(&answer, payload))
}

/// The answer without faults: gate, then chance, then the model.
fn right_answer(
    sandbox: &Sandbox,
    api: Api,
    request: &Request<Incoming>,
    target: &str,
    number: u64,
    now: u64,
) -> Answer {
    let required = sandbox.inner.settings.require_key.as_deref();
    let passed = gate::pass(
        required,
        sandbox.limiter(api).as_mut(),
        request.method(),
        request.headers(),
        now,
    );
    let verdict = match passed {
        Ok(verdict) => verdict,
        Err(refusal) => return *refusal,
    };
    let mut answer = sandbox
        .model()
        .answer_at(api, request.method(), target, request.headers());
    if answer.database && sandbox.inner.settings.strikes(number) {
        // Half of the time it is the look-up for the tag that runs out of time.
        answer = sandbox
            .model()
            .timed_out(target, number.is_multiple_of(2))
            .for_method(request.method());
    }
    if let Some(verdict) = verdict {
        gate::tell(&mut answer, verdict);
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
