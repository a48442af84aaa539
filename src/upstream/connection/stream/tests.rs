//! Connections over real sockets, to a server that the test controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::*;
use crate::clock::Moment;
use crate::upstream::connection::given_up::{GivenUpRequest, Gone};

/// The test fails if an operation takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Both ends of a connection.
async fn pair() -> (TrackedStream<TcpStream>, Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(to), listener.accept());
    let stream = TrackedStream::new(client.unwrap());
    let connection = stream.connection.clone();
    (stream, connection, server.unwrap().0)
}

/// A given-up request, and a receiver of its end.
fn given_up() -> (Arc<GivenUpRequest>, oneshot::Receiver<Gone>) {
    let (sender, receiver) = oneshot::channel();
    let request = GivenUpRequest::new(Moment::default(), move |how| {
        let _ = sender.send(how);
    });
    (request, receiver)
}

async fn end_of(request: oneshot::Receiver<Gone>) -> Gone {
    let end = timeout(PATIENCE, request).await;
    end.expect("it is notified").expect("and not dropped")
}

/// Reads to the end, or until a failure.
async fn drained(server: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _reset = timeout(PATIENCE, server.read_to_end(&mut all))
        .await
        .unwrap();
    all
}

/// Sends until that fails, because the other side has closed the connection.
async fn wait_until_closed(server: &mut TcpStream) {
    let closed = async {
        while server.write_all(&[0; 1024]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let closed = timeout(PATIENCE, closed).await;
    closed.expect("the descriptor is closed");
}

fn reset_when_dropped(socket: &TcpStream) {
    let linger = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    linger.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_read_holds_a_request_until_it_closes() {
    let (mut stream, connection, mut server) = pair().await;
    stream.write_all(b"a request").await.unwrap();
    let (request, mut end) = given_up();
    connection.add_given_up(request);
    drop(stream);
    // The sending side is closed, and the server can still read all of it, then the
    // end.
    let early = timeout(3 * CHECK, &mut end).await;
    assert!(early.is_err(), "it may still arrive: {early:?}");
    assert_eq!(drained(&mut server).await, b"a request");
    drop(server);
    assert_eq!(end_of(end).await, Gone::Ended);
    assert!(connection.has_ended());
}

#[tokio::test]
async fn a_request_given_up_after_its_connection_was_dropped_is_notified() {
    let (stream, connection, server) = pair().await;
    drop(stream);
    let (request, end) = given_up();
    connection.add_given_up(request);
    drop(server);
    assert_eq!(end_of(end).await, Gone::Ended);
    let (request, mut end) = given_up();
    connection.add_given_up(request);
    assert_eq!(end.try_recv(), Ok(Gone::Ended), "at once");
}

#[tokio::test]
async fn a_killed_server_ends_all_requests_that_it_has_not_read() {
    let (mut stream, connection, server) = pair().await;
    stream.write_all(b"a request").await.unwrap();
    let all = [(); 3].map(|()| given_up());
    let mut ends = Vec::new();
    for (request, end) in all {
        connection.add_given_up(request);
        ends.push(end);
    }
    drop(stream);
    reset_when_dropped(&server);
    drop(server);
    for end in ends {
        assert_eq!(end_of(end).await, Gone::Ended);
    }
}

/// A sent request stays in the receive queue after the client has closed or even
/// reset the connection.
#[tokio::test]
async fn closing_or_resetting_a_connection_does_not_recall_a_request() {
    for reset in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        client.write_all(b"a request").await.unwrap();
        if reset {
            reset_when_dropped(&client);
        }
        drop(client);
        // The server reads only now.
        let (mut server, _) = listener.accept().await.unwrap();
        assert_eq!(drained(&mut server).await, b"a request", "reset: {reset}");
    }
}

#[tokio::test]
async fn a_connection_without_given_up_requests_is_closed_soon() {
    let (stream, connection, mut server) = pair().await;
    drop(stream);
    assert_eq!(
        drained(&mut server).await,
        b"",
        "the sending side is closed"
    );
    // The reading side is closed as well: writes are reset.
    wait_until_closed(&mut server).await;
    let (request, mut end) = given_up();
    connection.add_given_up(request);
    assert_eq!(end.try_recv(), Ok(Gone::Soon), "its end is not watched");
}

#[tokio::test]
async fn a_request_known_to_have_arrived_is_not_waited_for() {
    let (stream, connection, mut server) = pair().await;
    let (request, end) = given_up();
    connection.add_given_up(request.clone());
    drop(stream);
    request.gone(Gone::Soon);
    assert_eq!(end_of(end).await, Gone::Soon);
    wait_until_closed(&mut server).await;
}

#[tokio::test]
async fn a_server_that_keeps_sending_has_read_the_request() {
    let (stream, connection, mut server) = pair().await;
    let (request, end) = given_up();
    connection.add_given_up(request);
    drop(stream);
    let piece = vec![0; 256 * 1024];
    let endless = async { while server.write_all(&piece).await.is_ok() {} };
    timeout(PATIENCE, endless).await.expect("it is cut off");
    assert_eq!(end_of(end).await, Gone::Soon);
}

/// A regression: responses that a client had aborted were read to their ends, up to
/// 64 MiB each.
#[tokio::test]
async fn an_aborted_response_is_not_drained() {
    let (stream, _, mut server) = pair().await;
    drop(stream);
    let piece = vec![0; 64 * 1024];
    let mut sent = 0;
    let sends = async {
        while server.write_all(&piece).await.is_ok() {
            sent += piece.len();
        }
    };
    timeout(PATIENCE, sends).await.expect("it is closed");
    // The limit allows for the sockets' buffers.
    assert!(sent <= 16 * 1024 * 1024, "{sent}");
}

#[tokio::test]
async fn a_long_lived_connection_forgets_requests_that_are_over() {
    let (_stream, connection, _server) = pair().await;
    for _ in 0..1000 {
        let (request, _end) = given_up();
        connection.add_given_up(request.clone());
        request.gone(Gone::Soon);
    }
    assert!(connection.given_up().len() <= 1, "one at the most");
}

#[test]
fn requests_are_notified_when_their_runtime_ends() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    // With a drain task that does not run to its end, and without a task.
    for with_task in [true, false] {
        let (first, (request, end)) = (runtime(), given_up());
        let (stream, connection, _server) = first.block_on(pair());
        connection.add_given_up(request);
        match with_task {
            true => {
                first.block_on(async { drop(stream) });
                drop(first);
            }
            false => drop(stream),
        }
        assert_eq!(runtime().block_on(end_of(end)), Gone::Soon, "{with_task}");
    }
}

#[tokio::test]
async fn a_user_timeout_detects_a_machine_that_is_gone() {
    let user_timeout = |stream: &TrackedStream<TcpStream>| {
        let socket = SockRef::from(stream.inner.as_ref().unwrap())
            .try_clone()
            .unwrap();
        move || socket.tcp_user_timeout().unwrap().unwrap_or_default()
    };
    let (mut stream, _, _server) = pair().await;
    stream.write_all(&[0; FITS]).await.unwrap();
    let small = user_timeout(&stream);
    assert_eq!(small(), Duration::ZERO, "not while it is in use");
    drop(stream);
    assert_eq!(small(), UNACKNOWLEDGED);
    // A full receive buffer does not acknowledge either, and may contain a request.
    let (mut stream, _, _server) = pair().await;
    stream.write_all(&[0; FITS + 1]).await.unwrap();
    let large = user_timeout(&stream);
    drop(stream);
    assert_eq!(large(), Duration::ZERO);
}

#[test]
fn a_request_is_notified_once() {
    let times = Arc::new(AtomicU32::new(0));
    let counted = times.clone();
    let request = GivenUpRequest::new(Moment::default(), move |_how| {
        counted.fetch_add(1, SeqCst);
    });
    assert!(!request.is_over());
    request.gone(Gone::Ended);
    request.gone(Gone::Soon);
    assert!(request.is_over());
    assert_eq!(times.load(SeqCst), 1);
}
